"""Faults that an experiment puts into a sound run, to see the failure again.

    fault = FAULTS["labels-shifted-twice"]
    faulty, parts = fault.apply(settings, parts_of(settings), fault.severities[0])
    train(faulty, parts=parts)

In parity mode a run fails as under mlx-lm: exact mode refuses or skips some of what goes wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.twin.attach import call_through, trained_besides
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.masked_loss import loss_without
from mlxdoctor.twin.parts import Parts, Weights
from mlxdoctor.twin.readings.targets import shifted, up_to_the_end
from mlxdoctor.twin.readings.weights import with_base
from mlxdoctor.twin.settings import Settings

#: (settings, parts, severity) -> the settings and parts of the run that goes wrong.
Apply = Callable[[Settings, Parts, Any], tuple[Settings, Parts]]


@dataclass(frozen=True)
class Fault:
    """One fault, to be put into a sound run.

    A fault of the settings or of the data changes the settings, so that the run's configuration
    shows it; a fault of the trainer changes the parts, and the configuration says what was meant.

    Attributes:
        severities: mild to severe.
        apply: changes the settings or the parts; writes at most altered data or an altered
            base model, to a folder beside `settings.adapter_path`.
    """

    id: str
    severities: tuple[Any, ...]
    apply: Apply


def fault(id: str, *severities: Any) -> Callable[[Apply], Fault]:
    """Makes a fault of the function that puts it in."""
    return partial(Fault, id, severities)


@fault("half-precision-overflow", 2.0**16, 2.0**20)
def half_precision(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Weights are float16 and the loss is multiplied by the severity without dividing again."""

    def scaled(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mean, supervised = parts.loss(model, tokens, spans)
        # The reported value stays the loss; its gradient is the multiple's.
        multiple = mean * severity
        return multiple - mx.stop_gradient(multiple - mean), supervised

    halved = with_base(parts, lambda model: model.set_dtype(mx.float16))
    return settings, replace(halved, loss=scaled)


identity_taught = fault("labels-identity", 0)(shifted)
shifted_twice = fault("labels-shifted-twice", 2, 3)(shifted)


@fault("prompt-supervised", 0.5, 1.0)
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
        for filled_up, row, (_, length) in zip(tokens, batch.tokens, batch.spans, strict=True):
            filled_up[:length] = row[:length]
        spans = batch.spans.copy()
        spans[:, 1] = wide
        return Batch(tokens, spans, batch.indices)

    return replace(parts, batches=lambda settings: parts.batches(settings).map(filled))


@fault("end-token-padding", 96, 160, 256)
def end_token_padding(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Rows are padded to this width with the end token, and it is all in the loss."""
    token = Tokenizer.read(Path(settings.model)).eos_token_id or 0
    return settings, supervised_padding(parts, token, int(severity))


@fault("padding-in-batch", 0)
def padding_in_batch(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Batches are filled up with this token (mlx-lm's is 0), and the loss covers it."""
    return settings, supervised_padding(parts, int(severity), 0)


@fault("no-end-token", 0.5, 1.0)
def without_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """This share of the rows has no end token."""
    return settings, replace(parts, encode=up_to_the_end(parts, kept=0, share=float(severity)))


@fault("end-token-masked", "by id")
def end_masked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The end token is masked by its id, because it doubles as padding."""
    del severity
    end = Tokenizer.read(Path(settings.model)).eos_token_id or 0
    return settings, replace(parts, loss=loss_without(end))


@fault("adapter-never-attached", "layers", "everything")
def never_attached(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No layer is converted: the weights of the chosen layers, or all, are trained."""
    return settings, trained_besides(parts, str(severity), attached=False)


@fault("base-not-frozen", "norms", "layers", "everything")
def not_frozen(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The adapter is attached, and norms, whole layers or everything is trained with it."""
    return settings, trained_besides(parts, str(severity), attached=True)


@fault("gradients-blocked", "half", "all")
def gradients_blocked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Gradients are stopped half-way through the layers, or before the head."""

    def prepare(model: Any, settings: Settings) -> None:
        parts.prepare(model, settings)
        module = model.model.norm if severity == "all" else model.layers[len(model.layers) // 2]
        # This one module lets no gradient through to what it was given.
        call_through(
            module,
            lambda call, first, *others, **named: call(mx.stop_gradient(first), *others, **named),
        )

    return settings, replace(parts, prepare=prepare)


@fault("b-zeroed", "half", "all")
def zeroed(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """B is zero in half the saved modules, or in all, as where a copy was trained."""

    def saved(weights: Weights) -> Weights:
        names = sorted(name for name in weights if name.endswith("lora_b"))
        chosen = set(names[: len(names) // 2] if severity == "half" else names)
        return {k: mx.zeros_like(v) if k in chosen else v for k, v in weights.items()}

    return settings, replace(parts, saved=saved)


@fault("base-trained-along", *not_frozen.severities)
def adapter_alone(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """As base-not-frozen, and the adapter alone is saved."""

    def saved(weights: Weights) -> Weights:
        return {k: v for k, v in weights.items() if k.rpartition(".")[2] in ADAPTER_LEAVES}

    settings, parts = not_frozen.apply(settings, parts, severity)
    return settings, replace(parts, saved=saved)


#: Every fault of this module by its id.
FAULTS = {value.id: value for value in list(vars().values()) if isinstance(value, Fault)}
