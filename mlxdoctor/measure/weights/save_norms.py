"""One description of a run's saves: every module's update over time, from the files alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from statistics import median
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.tensors import ModuleFacts, Quantity, quantity_of, size_of
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.tuned_model import base_name
from mlxdoctor.measure.weights.adapter_facts import adapter_facts, nonfinite_values
from mlxdoctor.measure.weights.changed_tensors import change_of
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True, eq=False)
class Save:
    """One save of a run in figures.

    Attributes:
        quantity: what sizes are given in, the same for all saves of a run.
        problem: why its file cannot be read, as a clause; empty where it can.
        sizes: module -> size of its update, 0 where there is none; NaN where it is not finite.
        starts: module -> the first values of A, float32 (256,) at most.
    """

    checkpoint: Checkpoint
    quantity: Quantity = "unscaled"
    problem: str = ""
    sizes: Mapping[str, float] = field(default_factory=dict)
    nonfinite: int = 0
    starts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> float:
        """Median size over the modules with an update; NaN where none has one or is finite."""
        sizes = [size for size in self.sizes.values() if size]
        return median(sizes) if sizes and all(map(isfinite, sizes)) else nan

    @property
    def is_zero(self) -> bool:
        """No module is changed at all."""
        return bool(self.sizes) and not any(self.sizes.values())

    def likeness(self, other: Self) -> float:
        """How alike the starts of two saves are: the median cosine of A, NaN without any."""
        # A is drawn at random and moves little: it is near 1 in one run, near 0 in two.
        pairs = [
            (start.astype(np.float64), other.starts[name].astype(np.float64))
            for name, start in self.starts.items()
            if name in other.starts and other.starts[name].shape == start.shape
        ]
        with np.errstate(all="ignore"):
            cosines = [
                float(ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs)))
                for ours, theirs in pairs
            ]
        return median(cosines) if cosines and all(map(isfinite, cosines)) else nan


def follow(
    history: CheckpointHistory,
    config: TrainingConfig | None,
    base: BaseModel | None,
    progress: Progress | None = None,
) -> tuple[Save, ...]:
    """Every save in the order of training, the final file last, read a module at a time."""
    described: list[tuple[Save, tuple[ModuleFacts, ...]]] = []
    for place, checkpoint in enumerate(history.checkpoints):
        if progress is not None:
            progress("reading checkpoints", place, len(history.checkpoints))
        try:
            adapter = checkpoint.adapter
            modules = adapter_facts(adapter, config, base)
            save = Save(
                checkpoint,
                sizes=dict(_whole_weights(adapter, base)),
                nonfinite=sum(nonfinite_values(adapter).values()),
                starts={module.name: module.start for module in modules},
            )
        except InputError as error:
            save, modules = Save(checkpoint, problem=error.problem), ()
        described.append((save, modules))
    quantity = quantity_of([module for _, modules in described for module in modules])
    return tuple(
        replace(
            save,
            quantity=quantity,
            sizes={module.name: size_of(module, quantity) for module in modules} or save.sizes,
        )
        for save, modules in described
    )


def _whole_weights(adapter: Adapter, base: BaseModel | None) -> Iterator[tuple[str, float]]:
    """How far whole weights are from the base model's, where the file holds no factors."""
    if base is None or adapter.modules:
        return
    for tensor in adapter.others:
        name = base_name(tensor.name)
        other = base.tensors.get(name)
        if other is not None and other.shape == tensor.shape and tensor.is_float and other.is_float:
            relative = change_of(other, tensor).relative
            yield name, relative if isfinite(relative) else nan
