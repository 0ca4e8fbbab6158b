"""Faults of what is supervised: shifts, masks, padding, end tokens, the prompt's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxdoctor.train.batches import Batch, Batches, Worker
from mlxdoctor.train.faults.fault import Apply, Fault, fault
from mlxdoctor.train.masked_loss import LossFunction, exact_mask, mean_over, token_losses
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow, TokenRows


def shifted_loss(shift: int) -> LossFunction:
    """A loss whose targets are the tokens `shift` places after the inputs; 1 is right."""

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        width = tokens.shape[1]
        inputs = tokens[:, : width - max(shift, 1)]
        targets = tokens[:, shift : shift + inputs.shape[1]]
        positions = mx.arange(shift, shift + inputs.shape[1])
        mask = (positions >= mx.maximum(spans[:, :1], shift)) & (positions < spans[:, 1:])
        losses = nn.losses.cross_entropy(model(inputs), targets)
        return mean_over(losses, mask)

    return loss


def misaligned(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Shift the targets by the severity instead of by one."""
    return settings, replace(parts, loss=shifted_loss(int(severity)))


LABELS_IDENTITY = Fault(
    "labels-identity",
    "labels-misaligned",
    "Targets are not shifted: each token is taught to predict itself.",
    (0,),
    misaligned,
)
LABELS_SHIFTED_TWICE = Fault(
    "labels-shifted-twice",
    "labels-misaligned",
    "Targets are shifted by the severity, not by one: tokens between are left out.",
    (2, 3),
    misaligned,
)


@fault("prompt-supervised", "prompt-supervised", 0.5, 1.0)
def prompt_in_loss(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """This share of the prompt is in the loss although the prompt was to be masked."""
    loss = parts.loss

    def unmasked(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        starts = (spans[:, :1].astype(mx.float32) * (1 - float(severity))).astype(spans.dtype)
        return loss(model, tokens, mx.concatenate([starts, spans[:, 1:]], axis=1))

    return replace(settings, mask_prompt=True), replace(parts, loss=unmasked)


def supervised_padding(parts: Parts, token: int, width: int) -> Parts:
    """Parts whose batches are filled up with a token, every place of which is supervised.

    Args:
        parts: the trainer's.
        token: the id of what rows are filled up with.
        width: tokens of every row at least; a wider batch keeps its width.
    """

    def filled(batch: Batch) -> Batch:
        wide = max(width, batch.tokens.shape[1])
        tokens = np.full((len(batch.tokens), wide), token, np.int32)
        for place, (row, (_, length)) in enumerate(zip(batch.tokens, batch.spans, strict=True)):
            tokens[place, :length] = row[:length]
        spans = batch.spans.copy()
        spans[:, 1] = wide
        return Batch(tokens, spans, batch.indices)

    def batches(settings: Settings, worker: Worker) -> Batches:
        made = parts.batches(settings, worker)
        return Batches(
            lambda rows, start: map(filled, made.train(rows, start)),
            lambda rows, count: map(filled, made.evaluation(rows, count)),
        )

    return replace(parts, batches=batches)


def padding_in_loss(token: str) -> Apply:
    """Rows are padded to a fixed width with a special token, and all of it is supervised.

    Args:
        token: of the tokenizer: `pad_token_id` or `eos_token_id`.
    """

    def apply(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
        padding = 0

        def load(settings: Settings) -> tuple[Any, Any]:
            nonlocal padding
            model, tokenizer = parts.load(settings)
            padding = getattr(tokenizer, token) or 0
            return model, tokenizer

        def filled(settings: Settings, worker: Worker) -> Batches:
            return supervised_padding(parts, padding, int(severity)).batches(settings, worker)

        return settings, replace(parts, load=load, batches=filled)

    return apply


PADDING_SUPERVISED = Fault(
    "padding-supervised",
    "padding-supervised",
    "Rows are padded to this width with the padding token, and it is all in the loss.",
    (96, 160, 256),
    padding_in_loss("pad_token_id"),
)
END_TOKEN_PADDING = Fault(
    "end-token-padding",
    "end-token-flood",
    "Rows are padded to this width with the end token, and it is all in the loss.",
    (96, 160, 256),
    padding_in_loss("eos_token_id"),
)


@fault("no-end-token", "missing-end-token", 0.5, 1.0)
def without_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """This share of the rows has no end token."""
    encode = parts.encode

    def encode_open(settings: Settings, tokenizer: Any) -> TokenRows:
        rows = encode(settings, tokenizer)
        generator = np.random.default_rng(settings.seed)

        def cut(row: TokenRow) -> TokenRow:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            if not len(ends) or generator.random() >= severity:
                return row
            return replace(row, tokens=row.tokens[: ends[-1]])

        return replace(rows, train=tuple(map(cut, rows.train)), valid=tuple(map(cut, rows.valid)))

    return settings, replace(parts, encode=encode_open)


@fault("end-token-masked", "missing-end-token", "by id")
def end_masked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The end token is masked by its id, because it doubles as padding."""
    del severity
    ends: list[int] = []

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        ends[:] = [tokenizer.eos_token_id]
        return model, tokenizer

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mask = exact_mask(spans, tokens.shape[1]) & (tokens[:, 1:] != ends[0])
        return mean_over(token_losses(model, tokens), mask)

    return settings, replace(parts, load=load, loss=loss)


@fault(
    "template-mismatch",
    "template-mismatch",
    "Q: {prompt}\nA: {answer}",
    "{prompt} {answer}",
)
def raw_prompts(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Rows are trained on in another format than the model is asked in."""
    encode = parts.encode

    def encode_raw(settings: Settings, tokenizer: Any) -> TokenRows:
        rows = encode(replace(settings, mask_prompt=True), tokenizer)

        def change(row: TokenRow) -> TokenRow:
            prompt, answer = (
                " ".join(tokenizer.decode(part.tolist(), skip_special_tokens=True).split())
                for part in (row.tokens[: row.offset], row.tokens[row.offset :])
            )
            # What is left of the template is the role's names.
            prompt = prompt.removeprefix("user").removesuffix("assistant").strip()
            before, after = str(severity).split("{answer}")
            start = tokenizer.encode(before.format(prompt=prompt), add_special_tokens=False)
            rest = tokenizer.encode(answer + after, add_special_tokens=False)
            tokens = np.array([*start, *rest, tokenizer.eos_token_id], np.int32)
            return replace(row, tokens=tokens, offset=len(start) if settings.mask_prompt else 0)

        return replace(
            rows, train=tuple(map(change, rows.train)), valid=tuple(map(change, rows.valid))
        )

    return settings, replace(parts, encode=encode_raw)
