"""What to change so that training fits into memory, in the order of what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from types import MappingProxyType
from typing import Any

from mlxdoctor.check import limit
from mlxdoctor.preflight.memory import MemoryEstimate, predict_memory, scaled, variable_factor
from mlxdoctor.preflight.model_shape import Matrix, ModelShape
from mlxdoctor.preflight.planned_step import PlannedStep, width


@dataclass(frozen=True)
class FittingLimits:
    """When training fits."""

    share: float = limit(
        0.87,
        unit="of the machine's memory that the predicted peak may take",
        source="a peak is predicted within 15%: 1/1.15",
    )
    fewest_layers: int = limit(
        4, unit="layers", source="a choice; mlx-lm trains 16 where it is not told"
    )


@dataclass(frozen=True)
class Change:
    """One thing to change.

    Attributes:
        kind: "checkpointing", "batch", "length", "layers" or "quantised": the order of cost.
        settings: mlx-lm's keys -> new values; empty where another base is needed.
        sentence: what to do, and what it costs.
    """

    kind: str
    settings: Mapping[str, Any]
    sentence: str


@dataclass(frozen=True)
class WayToFit:
    """Changes that make training fit.

    Attributes:
        changes: cheapest kind first.
        step: as it is with them.
        model: as it is with them.
        estimate: the peak that is predicted then.
    """

    changes: tuple[Change, ...]
    step: PlannedStep
    model: ModelShape
    estimate: MemoryEstimate

    @property
    def settings(self) -> Mapping[str, Any]:
        """All keys to change, with their values."""
        return MappingProxyType({k: v for one in self.changes for k, v in one.settings.items()})


@dataclass(frozen=True)
class PlannedRows:
    """What a change of batch or length has to know.

    Attributes:
        iterations: as planned; a smaller batch needs more of them.
        steps_per_eval: iterations between two validations.
        save_every: iterations between two saves.
        max_seq_length: as planned.
        uncut: tokens at which no answer is cut; None where that is not known.
    """

    iterations: int
    steps_per_eval: int = 200
    save_every: int = 100
    max_seq_length: int = 2048
    uncut: int | None = None


#: The order of cost.
KINDS = ("checkpointing", "batch", "length", "layers", "quantised")
_BITS, _GROUP = 4, 64


def fits(estimate: MemoryEstimate, memory: int, limits: FittingLimits | None = None) -> bool:
    """Whether training fits into that many bytes."""
    return estimate.peak <= (limits or FittingLimits()).share * memory


def ways_to_fit(
    model: ModelShape,
    step: PlannedStep,
    memory: int,
    rows: PlannedRows,
    *,
    factor: float = 1.0,
    limits: FittingLimits | None = None,
) -> tuple[WayToFit, ...]:
    """Every smallest set of changes that makes training fit, cheapest first; none if it fits now.

    Of each kind the mildest change is taken that suffices. The kinds' order is that of their
    cost: time alone, then more time, rows' ends, what is learned, another base.

    Args:
        model: the base.
        step: as planned.
        memory: bytes that there are.
        rows: what is planned besides.
        factor: measured over predicted peak of the step, where it was made.
        limits: when it fits.
    """
    limits = limits or FittingLimits()
    predicted = predict_memory(model, step)
    times = 1.0 if factor == 1.0 else variable_factor(predicted, round(factor * predicted.peak))

    def peak_of(base: ModelShape, changed: PlannedStep) -> MemoryEstimate:
        estimate = predict_memory(base, changed)
        return estimate if factor == 1.0 else scaled(estimate, times)

    room = limits.share * memory
    if peak_of(model, step).peak <= room:
        return ()
    asked = _Asked(model, step, rows, limits)
    choices = {kind: list(choose(asked)) for kind, choose in _CHOICES.items()}
    found: list[WayToFit] = []
    for count in range(1, len(KINDS) + 1):
        for kinds in sorted(combinations(KINDS, count), key=_cost):
            known = [{change.kind for change in way.changes} for way in found]
            if any(one <= set(kinds) for one in known):
                continue
            way = _mildest(asked, [choices[kind] for kind in kinds], room, peak_of)
            if way is not None:
                found.append(way)
    return tuple(sorted(found, key=lambda way: _cost(tuple(one.kind for one in way.changes))))


@dataclass(frozen=True)
class _Asked:
    model: ModelShape
    step: PlannedStep
    rows: PlannedRows
    limits: FittingLimits


_Choice = tuple[Change, PlannedStep, ModelShape]


def _cost(kinds: Sequence[str]) -> tuple[int, ...]:
    """Dearest kind first: a set is as dear as its dearest."""
    return tuple(sorted((KINDS.index(kind) for kind in kinds), reverse=True))


def _mildest(
    asked: _Asked,
    choices: Sequence[Sequence[_Choice]],
    room: float,
    peak_of: Callable[[ModelShape, PlannedStep], MemoryEstimate],
) -> WayToFit | None:
    # The cheaper a kind, the further it is gone before a dearer one is: product() varies the
    # last fastest, so that the dearest comes first.
    for chosen in product(*reversed(choices)):
        changed, base = asked.step, asked.model
        for change, other, another in chosen:
            names = _FIELDS[change.kind]
            changed = replace(changed, **{name: getattr(other, name) for name in names})
            base = another if change.kind == "quantised" else base
        estimate = peak_of(base, changed)
        if estimate.peak <= room:
            changes = tuple(change for change, _, _ in reversed(chosen))
            return WayToFit(changes, changed, base, estimate)
    return None


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "checkpointing": ("grad_checkpoint",),
    "batch": ("batch_size", "grad_accumulation_steps"),
    "length": ("tokens", "validation_tokens"),
    "layers": ("num_layers",),
    "quantised": (),
}


def _checkpointing(asked: _Asked) -> Iterator[_Choice]:
    if not asked.step.grad_checkpoint:
        words = (
            "Set grad_checkpoint: true: the same is learned, and a step takes about a third longer."
        )
        change = Change("checkpointing", {"grad_checkpoint": True}, words)
        yield change, replace(asked.step, grad_checkpoint=True), asked.model


def _batch(asked: _Asked) -> Iterator[_Choice]:
    for size in range(asked.step.batch_size - 1, 0, -1):
        if asked.step.batch_size % size:
            continue
        times = asked.step.batch_size // size
        accumulation = asked.step.grad_accumulation_steps * times
        settings = {
            "batch_size": size,
            "grad_accumulation_steps": accumulation,
            "iters": asked.rows.iterations * times,
            "steps_per_eval": asked.rows.steps_per_eval * times,
            "save_every": asked.rows.save_every * times,
        }
        words = (
            f"Set batch_size: {size} with grad_accumulation_steps: {accumulation} and {times} "
            "times as many iterations: as many rows an update, and as many updates."
        )
        changed = replace(asked.step, batch_size=size, grad_accumulation_steps=accumulation)
        yield Change("batch", settings, words), changed, asked.model


def _length(asked: _Asked) -> Iterator[_Choice]:
    if asked.rows.uncut is None or asked.rows.uncut >= asked.rows.max_seq_length:
        return
    tokens = min(asked.step.tokens, width(asked.rows.uncut, asked.rows.uncut))
    if tokens < asked.step.tokens:
        words = (
            f"Set max_seq_length: {asked.rows.uncut}: no answer is cut at that, "
            "and what lies behind them is left away."
        )
        checked = min(asked.step.validation_tokens, tokens)
        changed = replace(asked.step, tokens=tokens, validation_tokens=checked)
        yield Change("length", {"max_seq_length": asked.rows.uncut}, words), changed, asked.model


def _layers(asked: _Asked) -> Iterator[_Choice]:
    count = len(asked.step.trained_layers(asked.model)) // 2
    while count >= asked.limits.fewest_layers:
        words = f"Set num_layers: {count}: fewer layers learn, which may be less than is needed."
        yield (
            Change("layers", {"num_layers": count}, words),
            replace(asked.step, num_layers=count),
            asked.model,
        )
        count //= 2


def _quantised(asked: _Asked) -> Iterator[_Choice]:
    if asked.step.fine_tune_type != "full" and not asked.model.is_quantised:
        words = (
            f"Train on the base at {_BITS} bits (mlx_lm.convert --quantize): "
            "the adapter then belongs to that base."
        )
        yield Change("quantised", {}, words), asked.step, quantised(asked.model)


_CHOICES = dict(zip(KINDS, (_checkpointing, _batch, _length, _layers, _quantised), strict=True))


def quantised(model: ModelShape, bits: int = _BITS, group: int = _GROUP) -> ModelShape:
    """The model as `mlx_lm.convert --quantize` would store it, embeddings included."""

    def packed(matrix: Matrix) -> Matrix:
        stored = round(matrix.size * (bits / 8 + 2 * model.number / group))
        return replace(matrix, quantised=True, stored=stored)

    layers = tuple(
        replace(layer, matrices=tuple(packed(one) for one in layer.matrices))
        for layer in model.layers
    )
    outside = tuple(packed(one) for one in model.outside)
    before = sum(one.stored for one in (*_all(model.layers), *model.outside))
    after = sum(one.stored for one in (*_all(layers), *outside))
    return replace(model, layers=layers, outside=outside, stored=model.stored - before + after)


def _all(layers: Sequence[Any]) -> Iterator[Matrix]:
    for layer in layers:
        yield from layer.matrices
