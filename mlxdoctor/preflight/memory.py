"""How much memory training will take at its peak, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod

from mlxdoctor.check import limit
from mlxdoctor.preflight.activations import (
    ADAPTER_NUMBER,
    around_the_loss,
    boundary,
    kept_by,
    kernels_of,
)
from mlxdoctor.preflight.model_shape import Matrix, ModelShape
from mlxdoctor.preflight.planned_step import PlannedStep

MEGA, GIGA = 1e6, 1e9


@dataclass(frozen=True)
class CacheLimits:
    """What MLX holds back of memory that was freed."""

    cpu: int = limit(
        32 << 20, unit="bytes", source="MLX's allocator for the CPU, no_gpu/allocator.cpp"
    )


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory at the peak.

    Attributes:
        name: weights, adapters, optimiser, gradients, activations, or loss.
        bytes: how much.
        sentence: where it comes from.
    """

    name: str
    bytes: int
    sentence: str


@dataclass(frozen=True)
class MeasuredStep:
    """One real step on the longest batch.

    Attributes:
        peak: what `mx.get_peak_memory` gave, in bytes.
        seconds: what it took, once everything was compiled.
        is_first: the optimiser had no state before it, so that its peak lacks that.
    """

    peak: int
    seconds: float
    is_first: bool = False


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that training takes at its peak.

    Attributes:
        parts: what is held at once; they add up to `training`.
        training: the peak of a training step.
        validation: the peak of a validation; 0 without one.
        cache: what MLX may hold back besides, freed but not returned; 0 where that has no limit
            of its own. It is not in the peak, as `mx.get_peak_memory` leaves it out.
        is_rough: shapes were guessed.
        is_measured: a real step corrected it.
        source: what the shapes come from, and whether the device's kernels were measured.
    """

    parts: tuple[MemoryPart, ...]
    training: int
    validation: int
    cache: int
    is_rough: bool
    is_measured: bool
    source: str

    @property
    def peak(self) -> int:
        """The higher of both peaks."""
        return max(self.training, self.validation)


def predict_memory(model: ModelShape, step: PlannedStep) -> MemoryEstimate:
    """The peak of memory of training, as `mx.get_peak_memory` will show it.

    Nothing is run: weights, adapters, the optimiser's state and what the backward pass needs
    follow from shapes. See `activations` for the last.
    """
    trained = trained_bytes(model, step)
    state = optimizer_bytes(model, step)
    parts = (
        MemoryPart("weights", model.stored, f"The model's weights take {_size(model.stored)}."),
        *_adapters(model, step, trained),
        MemoryPart(
            "optimiser",
            state,
            f"{step.optimizer.capitalize()} keeps {_size(state)} of state for what is trained.",
        ),
        _gradients(model, step, trained),
        _activations(model, step),
        _loss(model, step),
    )
    held = model.stored + state + (0 if step.fine_tune_type == "full" else trained)
    return MemoryEstimate(
        parts,
        sum(one.bytes for one in parts),
        held + _forward_only(model, step) if step.validation_tokens else 0,
        CacheLimits().cpu if step.device == "cpu" else 0,
        model.is_rough,
        False,
        f"shapes from {model.source}; kernels: {kernels_of(step).source}",
    )


def corrected(
    estimate: MemoryEstimate, measure: Callable[[], MeasuredStep | None]
) -> MemoryEstimate:
    """The estimate with its activations corrected by one real step.

    What is held whatever the batch is known exactly; the rest of the measured peak is put to
    activations and loss, in the proportion that was predicted.

    Args:
        estimate: of the step that is measured.
        measure: runs one training step on the longest batch; None where it could not.
    """
    found = measure()
    if found is None:
        return estimate
    state = sum(one.bytes for one in estimate.parts if one.name == "optimiser")
    return brought_to(estimate, found.peak + (state if found.is_first else 0))


def brought_to(estimate: MemoryEstimate, peak: int) -> MemoryEstimate:
    """The estimate of a step whose peak was measured; see `corrected`."""
    factor = variable_factor(estimate, peak)
    found = scaled(estimate, factor)
    fixed = sum(one.bytes for one in estimate.parts if one.name not in _VARIABLE)
    return replace(found, training=max(peak, fixed))


def variable_factor(estimate: MemoryEstimate, peak: int) -> float:
    """How many times what was predicted for activations and loss a measured peak shows."""
    expected = sum(one.bytes for one in estimate.parts if one.name in _VARIABLE)
    fixed = sum(one.bytes for one in estimate.parts if one.name not in _VARIABLE)
    return max(0.0, (peak - fixed) / expected) if expected else 1.0


def scaled(estimate: MemoryEstimate, factor: float) -> MemoryEstimate:
    """The estimate with that many times the activations and loss that were predicted."""
    parts = tuple(
        replace(
            one,
            bytes=round(one.bytes * factor),
            sentence=f"{one.sentence} A real step took {factor:.2f} times what was predicted.",
        )
        if one.name in _VARIABLE
        else one
        for one in estimate.parts
    )
    training = sum(one.bytes for one in parts)
    return replace(estimate, parts=parts, training=training, is_rough=False, is_measured=True)


_VARIABLE = ("activations", "loss")
#: Gradient, and the parameter that replaces the old one.
_UPDATING = 2


def trained_bytes(model: ModelShape, step: PlannedStep) -> int:
    """Bytes of all that is trained: adapters, or the unfrozen layers."""
    if step.fine_tune_type == "full":
        return sum(
            layer.other + sum(one.stored for one in layer.matrices if not one.quantised)
            for layer in step.trained_layers(model)
        )
    return ADAPTER_NUMBER * sum(_numbers(one, step) for one in adapted(model, step))


def adapted(model: ModelShape, step: PlannedStep) -> Iterable[Matrix]:
    """Every matrix that gets an adapter."""
    for layer in step.trained_layers(model):
        yield from (one for one in layer.matrices if step.trains(one))
    yield from step.adapted_outside(model)


def optimizer_bytes(model: ModelShape, step: PlannedStep) -> int:
    """Bytes of the optimiser's state (mlx.optimizers), of the same precision as what is trained."""
    trained = trained_bytes(model, step)
    if step.optimizer in ("adam", "adamw"):
        return 2 * trained
    if step.optimizer in ("muon", "sgd"):
        # Both keep an array a parameter; SGD does so without momentum, too.
        return trained
    if step.optimizer == "adafactor":
        return _factored(model, step)
    return 2 * trained


def _factored(model: ModelShape, step: PlannedStep) -> int:
    """Adafactor's state: a row and a column of each matrix, and whole vectors."""
    if step.fine_tune_type == "full":
        sides = sum(
            model.number * one.experts * (one.inputs + one.outputs)
            for layer in step.trained_layers(model)
            for one in layer.matrices
        )
        return sides + sum(layer.other for layer in step.trained_layers(model))
    return ADAPTER_NUMBER * sum(
        one.experts * (one.inputs + one.outputs + 2 * step.rank) for one in adapted(model, step)
    )


def _numbers(matrix: Matrix, step: PlannedStep) -> int:
    numbers = step.rank * prod((matrix.experts, matrix.inputs + matrix.outputs))
    # DoRA's magnitudes.
    return numbers + (matrix.outputs if step.fine_tune_type == "dora" else 0)


def _adapters(model: ModelShape, step: PlannedStep, trained: int) -> Iterable[MemoryPart]:
    if step.fine_tune_type == "full":
        return
    count = sum(1 for _ in adapted(model, step))
    yield MemoryPart(
        "adapters",
        trained,
        f"Adapters of rank {step.rank} on {count} matrices take {_size(trained)}, in float32.",
    )


def _gradients(model: ModelShape, step: PlannedStep, trained: int) -> MemoryPart:
    """Gradients that are alive at the peak.

    MLX updates each parameter as soon as its gradient is there; with accumulation, the sum of
    the batches before is held throughout.
    """
    if step.grad_accumulation_steps > 1:
        words = f"Accumulated gradients take {_size(trained)}, as much as what is trained."
        return MemoryPart("gradients", trained, words)
    layers = step.trained_layers(model)
    share = round(_UPDATING * trained / len(layers)) if layers else 0
    words = f"The gradients and the update of one layer take {_size(share)}: each is used at once."
    return MemoryPart("gradients", share, words)


def _activations(model: ModelShape, step: PlannedStep) -> MemoryPart:
    layers = step.trained_layers(model)
    each = [kept_by(layer, model, step) for layer in layers]
    rows = f"{step.batch_size} rows of {step.tokens} tokens"
    if step.grad_checkpoint:
        kept = len(layers) * boundary(model, step) + max(each, default=0)
        words = (
            f"With checkpointing, {rows} keep {_size(kept)}: the inputs of {len(layers)} trained "
            "layers, and one layer's activations while it is computed again."
        )
        return MemoryPart("activations", kept, words)
    # The first trained layer's input has no gradient, and is not kept.
    kept = sum(each) - (2 * boundary(model, step) if each else 0)
    words = (
        f"For the backward pass, {rows} keep {_size(max(kept, 0))} in {len(layers)} trained layers."
    )
    return MemoryPart("activations", max(kept, 0), words)


def _loss(model: ModelShape, step: PlannedStep) -> MemoryPart:
    size = around_the_loss(model, step)
    copies = kernels_of(step).loss_copies
    words = (
        f"The loss and the first gradients take {_size(size)}: about {copies:.0f} arrays of "
        f"{step.batch_size} x {step.tokens} x {model.vocabulary} numbers, or the last layer's "
        "attention."
    )
    return MemoryPart("loss", size, words)


def _forward_only(model: ModelShape, step: PlannedStep) -> int:
    """A validation: no layer keeps anything, one is alive, and the logits are."""
    run = replace(step, tokens=step.validation_tokens, num_layers=1, grad_checkpoint=False)
    tokens = run.batch_size * run.tokens
    copies = kernels_of(run).loss_copies - 1
    logits = round(tokens * copies * model.number * model.vocabulary)
    return kept_by(model.layers[-1], model, run) + logits


def _size(count: int) -> str:
    return f"{count / GIGA:.2f} GB" if count >= GIGA else f"{count / MEGA:.1f} MB"
