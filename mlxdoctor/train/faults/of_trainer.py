"""Faults of a trainer and its settings: what is supervised and trained, rate, scale, limits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxdoctor.train.attach import convert, trained_layers
from mlxdoctor.train.batches import Batch, Batches
from mlxdoctor.train.faults.fault import Apply, Fault, beside, fault
from mlxdoctor.train.masked_loss import LossFunction, exact_mask, mean_over, token_losses
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow, TokenRows


def rate(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Multiply the learning rate, and the peak of a schedule, which is its first argument."""
    factor, schedule = float(severity), settings.lr_schedule
    if schedule is not None:
        first, *others = schedule["arguments"]
        schedule = {**schedule, "arguments": [first * factor, *others]}
    changed = settings.learning_rate * factor
    return replace(settings, learning_rate=changed, lr_schedule=schedule), parts


RATE_TOO_HIGH = Fault(
    "rate-too-high",
    "learning-rate-too-high",
    "The learning rate is the severity times a sound one.",
    (10, 30, 100),
    rate,
)
RATE_TOO_LOW = Fault(
    "rate-too-low",
    "learning-rate-too-low",
    "The learning rate is the severity times a sound one; 0 is no rate at all.",
    (1e-2, 1e-4, 0),
    rate,
)


@fault("scale-too-large", "scale-too-large", 5, 10, 30)
def scale_too_large(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The LoRA scale is the severity times a sound one, as when alpha is taken for it."""
    lora = dict(settings.lora_parameters or {})
    lora["scale"] = lora["scale"] * float(severity)
    return replace(settings, lora_parameters=lora), parts


@fault("answers-truncated", "answers-truncated", 0.9, 0.6, 0.25)
def answers_truncated(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Rows are cut this share of the way through the median answer."""
    _, tokenizer = parts.load(settings)
    rows = parts.encode(replace(settings, mask_prompt=True), tokenizer).train
    starts = np.median([row.offset for row in rows])
    ends = np.median([len(row.tokens) for row in rows])
    limit = round(float(starts + (ends - starts) * severity))
    return replace(settings, max_seq_length=limit), parts


@fault("no-validation-data", "no-validation-data", "none", harms="report")
def no_validation_data(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No batch is validated on, so that the validation loss is 0/0."""
    del severity
    return replace(settings, val_batches=0), parts


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


@fault("base-broken", "base-model-broken", 0.5, 1.0, 2.0)
def broken_base(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The base has noise on every matrix, this many of its standard deviations."""
    source, target = Path(settings.model), beside(settings, "base")
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, target)
    key = mx.random.key(settings.seed)
    for path in source.glob("*.safetensors"):
        weights: Any = mx.load(str(path))
        for name, one in weights.items():
            if one.ndim > 1 and mx.issubdtype(one.dtype, mx.floating):
                key, used = mx.random.split(key)
                noise = mx.random.normal(one.shape, one.dtype, key=used)
                weights[name] = one + float(severity) * mx.std(one) * noise
        mx.save_safetensors(str(target / path.name), weights, metadata={"format": "mlx"})
    return replace(settings, model=str(target)), parts


def another_base(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Train on the model in another folder, which the severity names, than the one stated."""
    other = replace(settings, model=str(severity))

    def load(settings: Settings) -> tuple[Any, Any]:
        del settings
        return parts.load(other)

    return settings, replace(parts, load=load)


@fault("resume-drops-keys", "resume-mismatch", 0.5, 1.0)
def resumed(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Resumed from an adapter of which this share of the tensors does not fit by name."""
    from mlxdoctor.train import train

    # The adapter resumed from is trained here, for as many iterations, beside the run's folder.
    first = replace(settings, adapter_path=str(beside(settings, "before")))
    path = train(first, parts=parts).adapter_path / "adapters.safetensors"
    weights: Any = mx.load(str(path))
    lost = sorted(weights)[: round(len(weights) * float(severity))]
    renamed = {f"language_model.{k}" if k in lost else k: v for k, v in weights.items()}
    mx.save_safetensors(str(path), renamed)
    return replace(settings, resume_adapter_file=str(path)), _unchecked(parts)


def _unchecked(parts: Parts) -> Parts:
    """Load what fits without a word, in whatever mode, as mlx-lm does when it resumes."""
    prepare = parts.prepare

    def lenient(model: Any, settings: Settings) -> None:
        prepare(model, replace(settings, resume_adapter_file=None))
        weights: Any = mx.load(str(settings.resume_adapter_file))
        # mlxdoctor: ignore[non-strict-load] this is the fault
        model.load_weights(list(weights.items()), strict=False)

    return replace(parts, prepare=lenient)


def wrong_base(*others: Path) -> Fault:
    """The fault of having trained on one of these models, and stating another."""
    return Fault(
        "wrong-base",
        "wrong-base-model",
        "The adapter was trained on another model than the configuration names.",
        tuple(map(str, others)),
        another_base,
    )
