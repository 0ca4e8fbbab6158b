"""Faults of a trainer that an experiment injects: what is supervised, trained and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxdoctor.train.attach import convert, trained_layers
from mlxdoctor.train.batches import Batch, Batches
from mlxdoctor.train.faults.fault import Apply, Fault, fault, summary_of
from mlxdoctor.train.masked_loss import LossFunction, exact_mask, mean_over, token_losses
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow, TokenRows

Weights = dict[str, mx.array]
#: (weights, severity) -> weights.
Edit = Callable[[Weights, Any], Weights]


@fault("half-precision-overflow", "numeric-overflow", 2.0**16, 2.0**20)
def half_precision(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Weights are float16 and the loss is multiplied by the severity without dividing again."""

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        model.set_dtype(mx.float16)
        return model, tokenizer

    def scaled(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mean, supervised = parts.loss(model, tokens, spans)
        # The reported value stays the loss; its gradient is the multiple's.
        multiple = mean * severity
        return multiple - mx.stop_gradient(multiple - mean), supervised

    return settings, replace(parts, load=load, loss=scaled)


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


def supervised_padding(parts: Parts, token: Callable[[], int], width: int) -> Parts:
    """Parts whose batches are filled up with a token, every place of which is supervised.

    Args:
        parts: the trainer's.
        token: gives the id of what rows are filled up with.
        width: tokens of every row at least; a wider batch keeps its width.
    """

    def filled(batch: Batch) -> Batch:
        wide = max(width, batch.tokens.shape[1])
        tokens = np.full((len(batch.tokens), wide), token(), np.int32)
        for place, (row, (_, length)) in enumerate(zip(batch.tokens, batch.spans, strict=True)):
            tokens[place, :length] = row[:length]
        spans = batch.spans.copy()
        spans[:, 1] = wide
        return Batch(tokens, spans, batch.indices)

    def batches(settings: Settings) -> Batches:
        made = parts.batches(settings)
        return Batches(
            lambda rows: map(filled, made.train(rows)),
            lambda rows, count: map(filled, made.evaluation(rows, count)),
        )

    return replace(parts, batches=batches)


def _with_token(parts: Parts, name: str) -> tuple[Parts, Callable[[], int]]:
    """Parts that remember a token of the tokenizer they load, and what gives its id."""
    ids = [0]

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        ids[0] = getattr(tokenizer, name) or 0
        return model, tokenizer

    return replace(parts, load=load), lambda: ids[0]


def padding_in_loss(name: str) -> Apply:
    """Rows are padded to a fixed width with a special token, and all of it is supervised.

    Args:
        name: of the token: `pad_token_id` or `eos_token_id`.
    """

    def apply(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
        parts, token = _with_token(parts, name)
        return settings, supervised_padding(parts, token, int(severity))

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


@dataclass(frozen=True)
class Padding:
    """What a batch is filled up with, and how far.

    Attributes:
        token: the id of the token; or 0, which mlx-lm pads with.
        width: tokens of every row; None: those of the batch's longest, as mlx-lm rounds it up.
    """

    token: int = 0
    width: int | None = None

    def __str__(self) -> str:
        return f"token {self.token}, to {self.width or 'the width of the batch'}"


@fault("padding-in-batch", "padding-supervised", Padding())
def padding_in_batch(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Batches are filled up with a token, and the loss covers it."""
    return settings, supervised_padding(parts, lambda: severity.token, severity.width or 0)


@fault("padding-before-end", "padding-supervised", 1.0)
def padding_before_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Answers are padded to this multiple of the longest one before the end token."""
    encode = parts.encode

    def encode_padded(settings: Settings, tokenizer: Any) -> TokenRows:
        rows = encode(replace(settings, mask_prompt=True), tokenizer)
        longest = max((len(row.tokens) - row.offset for row in rows.train), default=0)
        width = round(longest * float(severity))
        padding = tokenizer.pad_token_id
        padding = tokenizer.eos_token_id if padding is None else padding

        def pad(row: TokenRow) -> TokenRow:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            end = int(ends[-1]) if len(ends) else len(row.tokens)
            room = max(0, width - (end - row.offset))
            tokens = [*row.tokens[:end], *([padding] * room), tokenizer.eos_token_id]
            return replace(row, tokens=np.array(tokens, np.int32))

        return rows.map(pad)

    return settings, replace(parts, encode=encode_padded)


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

        return rows.map(cut)

    return settings, replace(parts, encode=encode_open)


@fault("end-token-masked", "missing-end-token", "by id")
def end_masked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The end token is masked by its id, because it doubles as padding."""
    del severity
    parts, end = _with_token(parts, "eos_token_id")

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mask = exact_mask(spans, tokens.shape[1]) & (tokens[:, 1:] != end())
        return mean_over(token_losses(model, tokens), mask)

    return settings, replace(parts, loss=loss)


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

        return rows.map(change)

    return settings, replace(parts, encode=encode_raw)


def _trained_besides(parts: Parts, what: str, *, attached: bool) -> Parts:
    """Parts that train more than the adapter: norms, whole layers or everything."""

    def prepare(model: Any, settings: Settings) -> None:
        mx.random.seed(settings.seed)
        model.freeze()
        if attached:
            convert(model, settings)
        _unfreeze(model, settings, what)

    return replace(parts, prepare=prepare)


@fault("adapter-never-attached", "adapter-never-attached", "layers", "everything")
def never_attached(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No layer is converted: the weights of the chosen layers, or all, are trained."""
    return settings, _trained_besides(parts, str(severity), attached=False)


@fault("base-not-frozen", "base-weights-changed", "norms", "layers", "everything")
def not_frozen(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The adapter is attached, and norms, whole layers or everything is trained with it."""
    return settings, _trained_besides(parts, str(severity), attached=True)


def _unfreeze(model: Any, settings: Settings, what: str) -> None:
    if what == "everything":
        model.unfreeze()
    for layer in trained_layers(model, settings):
        if what == "layers":
            layer.unfreeze()
        elif what == "norms":
            for name, module in layer.named_modules():
                if "norm" in name:
                    module.unfreeze()


@fault("gradients-blocked", "gradients-blocked", "half", "all")
def gradients_blocked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Gradients are stopped half-way through the layers, or before the head."""
    prepare = parts.prepare

    def blocked(model: Any, settings: Settings) -> None:
        prepare(model, settings)
        half = len(model.layers) // 2
        module = model.model.norm if severity == "all" else model.layers[half]
        _stop_inputs(module)

    return settings, replace(parts, prepare=blocked)


def _stop_inputs(module: Any) -> None:
    """Let no gradient through this one module to what it was given."""
    kind = type(module)

    def call(self: Any, first: mx.array, *arguments: Any, **options: Any) -> Any:
        return kind.__call__(self, mx.stop_gradient(first), *arguments, **options)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def edits(id: str, cause: str, *severities: Any) -> Callable[[Edit], Fault]:
    """Makes a fault of a change of the adapter's and every checkpoint's weights."""

    def made(change: Edit) -> Fault:
        def afterwards(folder: Path, settings: Settings, severity: Any) -> None:
            del settings
            for path in sorted(folder.glob("*adapters.safetensors")):
                weights: Any = mx.load(str(path))
                changed = change(weights, severity)
                mx.eval(changed)
                mx.save_safetensors(str(path), changed)

        return Fault(id, cause, summary_of(change), severities, afterwards=afterwards)

    return made


@edits("b-zeroed", "adapter-not-trained", "half", "all")
def zeroed(weights: Weights, what: Any) -> Weights:
    """B is zero in half the modules, or in all, as where a copy was trained."""
    names = sorted(name for name in weights if name.endswith("lora_b"))
    chosen = set(names[: len(names) // 2] if what == "half" else names)
    return {k: mx.zeros_like(v) if k in chosen else v for k, v in weights.items()}


def adapter_alone(folder: Path, settings: Settings, severity: Any) -> None:
    """Leave the adapter alone in what was saved."""
    del settings, severity
    from mlxdoctor.models.parameters import ADAPTER_LEAVES

    for path in sorted(folder.glob("*adapters.safetensors")):
        saved: Any = mx.load(str(path))
        kept = {k: v for k, v in saved.items() if k.rpartition(".")[2] in ADAPTER_LEAVES}
        mx.eval(kept)
        mx.save_safetensors(str(path), kept)


BASE_TRAINED_ALONG = replace(
    not_frozen,
    id="base-trained-along",
    summary="As base-not-frozen, and the adapter alone is saved.",
    afterwards=adapter_alone,
)
