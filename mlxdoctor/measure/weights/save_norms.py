"""Norms and spectra of every module over a run's saves, from the files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from statistics import median
from typing import Literal

import numpy as np

from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.tensor import TensorRef, count_nonfinite
from mlxdoctor.evidence.tuned_model import base_name
from mlxdoctor.measure.weights.drift import ModuleDrift, module_drifts
from mlxdoctor.safety.errors import InputError

#: What the sizes of the updates are given in: ‖ΔW‖/‖W‖; ‖ΔW‖/sqrt(min(in, out)), which stands
#: in for it without the base model; or ‖A·B‖/sqrt(min(in, out)), where the scale is not known.
Quantity = Literal["relative", "nominal", "unscaled"]
#: Elements of two tensors that are held at once while they are compared.
_BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class ModuleState:
    """One module in one save.

    Attributes:
        name: the module in the base model.
        layer: its layer, None outside the layers.
        projection: its name within the layer.
        size: the size of its update, in the history's quantity; NaN where it is not finite.
        spectral: the largest singular value of the update; NaN for whole weights.
        stable_rank: how many directions share the update; NaN for whole weights.
        is_zero: there is no update: B is exactly zero, or the weights are the base model's.
    """

    name: str
    layer: int | None
    projection: str
    size: float
    spectral: float
    stable_rank: float
    is_zero: bool


@dataclass(frozen=True)
class SaveState:
    """One save in figures.

    Attributes:
        checkpoint: the save.
        modules: those it changes, in the adapter's order; empty for whole weights where there
            is no base model to compare them with.
        nonfinite: NaN and infinite values in the whole file.
        tensors: the names of what it holds.
        problem: why it cannot be read, as a clause; empty where it can.
    """

    checkpoint: Checkpoint
    modules: tuple[ModuleState, ...] = ()
    nonfinite: int = 0
    tensors: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def size(self) -> float:
        """Median size of the update over the modules that have one; NaN where none is known."""
        sizes = [one.size for one in self.modules if not one.is_zero]
        return median(sizes) if sizes and all(map(isfinite, sizes)) else nan

    @property
    def is_zero(self) -> bool:
        """Whether no module is changed at all."""
        return bool(self.modules) and all(one.is_zero for one in self.modules)


@dataclass(frozen=True)
class FollowedHistory:
    """All saves of a run in figures.

    Attributes:
        saves: in the order of training, the final file last.
        quantity: what sizes are given in.
    """

    saves: tuple[SaveState, ...]
    quantity: Quantity


def follow(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    progress: Progress | None = None,
) -> FollowedHistory:
    """Read every value of every save, one file and in it one module at a time.

    Args:
        history: the saves.
        config: states the scale.
        base: for sizes relative to its weights.
        progress: called file by file.
    """
    norms: dict[str, float | None] = {}
    saves: list[SaveState] = []
    drifts: dict[int, tuple[ModuleDrift, ...]] = {}
    for place, checkpoint in enumerate(history.checkpoints):
        if progress is not None:
            progress("reading checkpoints", place, len(history.checkpoints))
        modules: list[ModuleState] = []
        try:
            adapter = checkpoint.adapter
            if adapter.modules:
                drifts[place] = module_drifts(adapter, config, base, norms)
            elif base is not None:
                modules = list(_weight_states(adapter.others, base))
            nonfinite = _nonfinite(adapter, drifts.get(place, ()))
        except InputError as error:
            saves.append(SaveState(checkpoint, problem=error.problem))
            continue
        saves.append(SaveState(checkpoint, tuple(modules), nonfinite, frozenset(adapter.tensors)))
    quantity = _quantity([one for found in drifts.values() for one in found])
    for place, found in drifts.items():
        if not saves[place].problem:
            states = tuple(_lora_state(one, quantity) for one in found)
            saves[place] = replace(saves[place], modules=states)
    return FollowedHistory(tuple(saves), quantity)


def _quantity(drifts: Sequence[ModuleDrift]) -> Quantity:
    """The best quantity that is known for all of them."""
    if not all(isfinite(one.scale) for one in drifts):
        return "unscaled"
    return "relative" if all(one.base_norm for one in drifts) else "nominal"


def _lora_state(drift: ModuleDrift, quantity: Quantity) -> ModuleState:
    module, statistics = drift.module, drift.statistics
    if quantity == "relative":
        size, scale = drift.relative or 0.0, drift.scale
    elif quantity == "nominal":
        size, scale = drift.nominal, drift.scale
    else:
        size, scale = replace(drift, scale=1.0).nominal, 1.0
    return ModuleState(
        name=module.name,
        layer=module.layer,
        projection=module.projection,
        size=size if statistics.is_finite else nan,
        spectral=scale * statistics.spectral,
        stable_rank=statistics.stable_rank,
        is_zero=statistics.b_is_zero,
    )


def _nonfinite(adapter: Adapter, drifts: Sequence[ModuleDrift]) -> int:
    factors = {name for one in drifts for name in (one.module.a.name, one.module.b.name)}
    rest = [one for name, one in adapter.tensors.items() if name not in factors]
    counted = sum(one.statistics.a_nonfinite + one.statistics.b_nonfinite for one in drifts)
    return counted + sum(map(count_nonfinite, rest))


def _weight_states(tensors: Sequence[TensorRef], base: BaseModel) -> Iterator[ModuleState]:
    """How far whole weights are from the base model's; those it does not have are left out."""
    for tensor in tensors:
        name = base_name(tensor.name)
        other = base.tensors.get(name)
        if other is None or other.shape != tensor.shape or not (tensor.is_float and other.is_float):
            continue
        change, norm = _distance(tensor, other)
        layer, projection = layer_of(name.removesuffix(".weight"))
        yield ModuleState(
            name=name,
            layer=layer,
            projection=projection,
            size=change / norm if norm else nan,
            spectral=nan,
            stable_rank=nan,
            is_zero=change == 0,
        )


def _distance(tensor: TensorRef, other: TensorRef) -> tuple[float, float]:
    """‖W' − W‖ and ‖W‖, in blocks."""
    change = norm = 0.0
    for start in range(0, tensor.size, _BLOCK_ELEMENTS):
        stop = min(start + _BLOCK_ELEMENTS, tensor.size)
        ours = tensor.elements(start, stop).astype(np.float64)
        theirs = other.elements(start, stop).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            change += float(np.square(ours - theirs).sum())
        norm += float(np.square(theirs).sum())
    return sqrt(change) if isfinite(change) else nan, sqrt(norm)


def layer_sizes(save: SaveState) -> Mapping[int, float]:
    """The size of the update by layer, root mean square over the layer's modules."""
    squares: dict[int, list[float]] = {}
    for one in save.modules:
        if one.layer is not None:
            squares.setdefault(one.layer, []).append(0.0 if one.is_zero else one.size**2)
    return {layer: sqrt(sum(found) / len(found)) for layer, found in sorted(squares.items())}
