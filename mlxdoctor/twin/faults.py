"""Faults that an experiment puts into a sound run, to see the failure again.

    fault = FAULTS["labels-shifted-twice"]
    faulty, parts = fault.inject(settings, fault.severities[0])
    train(faulty, parts=parts)
    fault.finish(Path(faulty.adapter_path), faulty, fault.severities[0])

In parity mode a run fails as under mlx-lm: exact mode refuses or skips some of what goes wrong.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.twin.attach import call_through, trained_besides
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.masked_loss import loss_without
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.prepared import parts_of
from mlxdoctor.twin.readings.targets import shifted, up_to_the_end
from mlxdoctor.twin.readings.weights import with_base
from mlxdoctor.twin.settings import Settings

Weights = dict[str, mx.array]
#: (weights, severity) -> weights.
Edit = Callable[[Weights, Any], Weights]
#: (settings, parts, severity) -> the settings and parts of the run that goes wrong.
Apply = Callable[[Settings, Parts, Any], tuple[Settings, Parts]]
#: (the folder the run wrote, its settings, severity): what goes wrong once it is over.
Afterwards = Callable[[Path, Settings, Any], None]


@dataclass(frozen=True)
class Fault:
    """One fault, to be put into a sound run.

    A fault of the settings or of the data changes the settings, so that the run's configuration
    shows it; a fault of the trainer changes the parts, and the configuration says what was meant.

    Attributes:
        cause: the id of the root cause in `causes.toml`.
        severities: mild to severe.
        apply: changes the settings or the parts; writes at most altered data or an altered
            base model, to a folder beside `settings.adapter_path`.
        afterwards: changes the files that a run wrote.
    """

    id: str
    cause: str
    severities: tuple[Any, ...]
    apply: Apply = lambda settings, parts, _: (settings, parts)
    afterwards: Afterwards = lambda *_: None

    def inject(
        self, settings: Settings, severity: Any = None, parts: Parts | None = None
    ) -> tuple[Settings, Parts]:
        """Settings and parts of a run with this fault, for `train(settings, parts=parts)`.

        Args:
            settings: of a sound run.
            severity: one of `severities`, or of their kind; the most severe by default.
            parts: of the sound run, where they are not the mode's own.
        """
        chosen = self.severities[-1] if severity is None else severity
        return self.apply(settings, parts or parts_of(settings), chosen)

    def finish(self, folder: Path, settings: Settings, severity: Any = None) -> None:
        """Do to the files of a finished run what this fault does, if it does."""
        self.afterwards(folder, settings, self.severities[-1] if severity is None else severity)


def fault(id: str, cause: str, *severities: Any) -> Callable[[Apply], Fault]:
    """Makes a fault of the function that puts it in."""
    return partial(Fault, id, cause, severities)


@fault("half-precision-overflow", "numeric-overflow", 2.0**16, 2.0**20)
def half_precision(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Weights are float16 and the loss is multiplied by the severity without dividing again."""

    def scaled(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mean, supervised = parts.loss(model, tokens, spans)
        # The reported value stays the loss; its gradient is the multiple's.
        multiple = mean * severity
        return multiple - mx.stop_gradient(multiple - mean), supervised

    halved = with_base(parts, lambda model: model.set_dtype(mx.float16))
    return settings, replace(halved, loss=scaled)


identity_taught = fault("labels-identity", "labels-misaligned", 0)(shifted)
shifted_twice = fault("labels-shifted-twice", "labels-misaligned", 2, 3)(shifted)


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
        for filled_up, row, (_, length) in zip(tokens, batch.tokens, batch.spans, strict=True):
            filled_up[:length] = row[:length]
        spans = batch.spans.copy()
        spans[:, 1] = wide
        return Batch(tokens, spans, batch.indices)

    return replace(parts, batches=lambda settings: parts.batches(settings).map(filled))


@fault("end-token-padding", "end-token-flood", 96, 160, 256)
def end_token_padding(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Rows are padded to this width with the end token, and it is all in the loss."""
    token = Tokenizer.read(Path(settings.model)).eos_token_id or 0
    return settings, supervised_padding(parts, token, int(severity))


@fault("padding-in-batch", "padding-supervised", 0)
def padding_in_batch(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Batches are filled up with this token (mlx-lm's is 0), and the loss covers it."""
    return settings, supervised_padding(parts, int(severity), 0)


@fault("no-end-token", "missing-end-token", 0.5, 1.0)
def without_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """This share of the rows has no end token."""
    return settings, replace(parts, encode=up_to_the_end(parts, kept=0, share=float(severity)))


@fault("end-token-masked", "missing-end-token", "by id")
def end_masked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The end token is masked by its id, because it doubles as padding."""
    del severity
    end = Tokenizer.read(Path(settings.model)).eos_token_id or 0
    return settings, replace(parts, loss=loss_without(end))


@fault("adapter-never-attached", "adapter-never-attached", "layers", "everything")
def never_attached(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No layer is converted: the weights of the chosen layers, or all, are trained."""
    return settings, trained_besides(parts, str(severity), attached=False)


@fault("base-not-frozen", "base-weights-changed", "norms", "layers", "everything")
def not_frozen(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The adapter is attached, and norms, whole layers or everything is trained with it."""
    return settings, trained_besides(parts, str(severity), attached=True)


@fault("gradients-blocked", "gradients-blocked", "half", "all")
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


def edits(
    id: str, cause: str, *severities: Any, apply: Apply = Fault.apply
) -> Callable[[Edit], Fault]:
    """Makes a fault of a change of the adapter's and every checkpoint's weights.

    Args:
        apply: changes the run before as well.
    """

    def made(change: Edit) -> Fault:
        def afterwards(folder: Path, settings: Settings, severity: Any) -> None:
            del settings
            for path in sorted(folder.glob("*adapters.safetensors")):
                weights: Any = mx.load(str(path))
                changed = change(weights, severity)
                mx.eval(changed)
                mx.save_safetensors(str(path), changed)

        return Fault(id, cause, severities, apply, afterwards)

    return made


@edits("b-zeroed", "adapter-not-trained", "half", "all")
def zeroed(weights: Weights, what: Any) -> Weights:
    """B is zero in half the modules, or in all, as where a copy was trained."""
    names = sorted(name for name in weights if name.endswith("lora_b"))
    chosen = set(names[: len(names) // 2] if what == "half" else names)
    return {k: mx.zeros_like(v) if k in chosen else v for k, v in weights.items()}


@edits("base-trained-along", not_frozen.cause, *not_frozen.severities, apply=not_frozen.apply)
def adapter_alone(weights: Weights, what: Any) -> Weights:
    """As base-not-frozen, and the adapter alone is saved."""
    del what
    return {k: v for k, v in weights.items() if k.rpartition(".")[2] in ADAPTER_LEAVES}


def faults_in(*modules: ModuleType) -> Mapping[str, Fault]:
    """Every fault that stands in one of these modules, by its id."""
    return {
        value.id: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Fault)
    }


#: Every fault of this module by its id.
FAULTS = faults_in(sys.modules[__name__])
