"""Faults of what is supervised: shifts, masks, padding, end tokens, the prompt's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxdoctor.train.batches import Batch, EvaluationBatches, TrainBatches
from mlxdoctor.train.faults.fault import Fault
from mlxdoctor.train.losses import exact_mask
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.rows import Row, Rows
from mlxdoctor.train.settings import Settings


def shifted_loss(shift: int) -> Callable[[Any, mx.array, mx.array], tuple[mx.array, mx.array]]:
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


def mean_over(losses: mx.array, mask: mx.array) -> tuple[mx.array, mx.array]:
    """Mean of the losses where the mask is true, and how many they are."""
    supervised = mask.sum()
    total = mx.where(mask, losses.astype(mx.float32), 0.0).sum()
    return total / mx.maximum(supervised, 1), supervised


def misaligned(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Shift the targets by the severity instead of by one."""
    return settings, replace(parts, loss=shifted_loss(int(severity)))


def prompt_in_loss(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Supervise this share of the prompt although the configuration masks it."""
    loss = parts.loss

    def unmasked(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        starts = (spans[:, :1].astype(mx.float32) * (1 - float(severity))).astype(spans.dtype)
        return loss(model, tokens, mx.concatenate([starts, spans[:, 1:]], axis=1))

    return replace(settings, mask_prompt=True), replace(parts, loss=unmasked)


def padding_in_loss(token: str) -> Any:
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

        def widened(batch: Batch) -> Batch:
            width = max(int(severity), batch.tokens.shape[1])
            tokens = np.full((len(batch.tokens), width), padding, np.int32)
            for place, (row, (_, length)) in enumerate(zip(batch.tokens, batch.spans, strict=True)):
                tokens[place, :length] = row[:length]
            spans = batch.spans.copy()
            spans[:, 1] = width
            return Batch(tokens, spans, batch.indices)

        train, evaluation = parts.train_batches, parts.evaluation_batches
        return settings, replace(
            parts,
            load=load,
            train_batches=_mapped_train(train, widened),
            evaluation_batches=_mapped_evaluation(evaluation, widened),
        )

    return apply


def _mapped_train(make: TrainBatches, change: Callable[[Batch], Batch]) -> TrainBatches:
    def train(rows: Sequence[Row], start: int) -> Iterator[Batch]:
        return map(change, make(rows, start))

    return train


def _mapped_evaluation(
    make: EvaluationBatches, change: Callable[[Batch], Batch]
) -> EvaluationBatches:
    def evaluation(rows: Sequence[Row], batches: int) -> Iterator[Batch]:
        return map(change, make(rows, batches))

    return evaluation


def without_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Leave the end token, and what follows it, off this share of the rows."""
    encode = parts.encode

    def encode_open(settings: Settings, tokenizer: Any) -> Rows:
        rows = encode(settings, tokenizer)
        generator = np.random.default_rng(settings.seed)

        def cut(row: Row) -> Row:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            if not len(ends) or generator.random() >= severity:
                return row
            return replace(row, tokens=row.tokens[: ends[-1]])

        return replace(rows, train=tuple(map(cut, rows.train)), valid=tuple(map(cut, rows.valid)))

    return settings, replace(parts, encode=encode_open)


def end_masked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Mask the end token wherever it stands, because it doubles as padding."""
    del severity
    ends: list[int] = []

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        ends[:] = [tokenizer.eos_token_id]
        return model, tokenizer

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mask = exact_mask(spans, tokens.shape[1]) & (tokens[:, 1:] != ends[0])
        losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        return mean_over(losses, mask)

    return settings, replace(parts, load=load, loss=loss)


def raw_prompts(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Train on another prompt format than the chat template that the model is asked in.

    The severity is the format: `{prompt}` and `{answer}`, the end token following.
    """
    encode = parts.encode

    def encode_raw(settings: Settings, tokenizer: Any) -> Rows:
        rows = encode(replace(settings, mask_prompt=True), tokenizer)

        def change(row: Row) -> Row:
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


FAULTS = (
    Fault(
        "labels-identity",
        "labels-misaligned",
        "Targets are not shifted: each token is taught to predict itself.",
        (0,),
        misaligned,
    ),
    Fault(
        "labels-shifted-twice",
        "labels-misaligned",
        "Targets are shifted by the severity, not by one: tokens between are left out.",
        (2, 3),
        misaligned,
    ),
    Fault(
        "prompt-supervised",
        "prompt-supervised",
        "This share of the prompt is in the loss although the prompt was to be masked.",
        (0.5, 1.0),
        prompt_in_loss,
    ),
    Fault(
        "padding-supervised",
        "padding-supervised",
        "Rows are padded to this width with the padding token, and it is all in the loss.",
        (96, 160, 256),
        padding_in_loss("pad_token_id"),
    ),
    Fault(
        "end-token-padding",
        "end-token-flood",
        "Rows are padded to this width with the end token, and it is all in the loss.",
        (96, 160, 256),
        padding_in_loss("eos_token_id"),
    ),
    Fault(
        "no-end-token",
        "missing-end-token",
        "This share of the rows has no end token.",
        (0.5, 1.0),
        without_end,
    ),
    Fault(
        "end-token-masked",
        "missing-end-token",
        "The end token is masked by its id, because it doubles as padding.",
        ("by id",),
        end_masked,
    ),
    Fault(
        "template-mismatch",
        "template-mismatch",
        "Rows are trained on in another format than the model is asked in.",
        ("Q: {prompt}\nA: {answer}", "{prompt} {answer}"),
        raw_prompts,
    ),
)
