"""Every module over a run's saves: the sizes of its updates, from the files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt

import numpy as np

from mlxdoctor.engines.tensors import (
    QUANTITIES,
    HistoryFacts,
    ModuleFacts,
    Quantity,
    SaveFacts,
    history,
    quantity_of,
    size_of,
)
from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.evidence.tuned_model import base_name
from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.measure.weights.adapter_facts import adapter_facts, nonfinite_values
from mlxdoctor.measure.weights.changed_tensors import change_of
from mlxdoctor.safety.errors import InputError

#: More modules than this are drawn layer by layer, as root mean squares.
MAX_MODULES = 64
#: More layers or saves than this are drawn at even distances.
MAX_ROWS, MAX_COLUMNS = 64, 60


@dataclass(frozen=True)
class SaveState:
    """One save.

    Attributes:
        checkpoint: the save.
        facts: what its tensors show; nothing where the file cannot be read.
        problem: why it cannot be read, as a clause; empty where it can.
    """

    checkpoint: Checkpoint
    facts: SaveFacts
    problem: str = ""


@dataclass(frozen=True)
class FollowedHistory:
    """All saves of a run in figures.

    Attributes:
        saves: in the order of training, the final file last.
        quantity: what sizes are given in.
    """

    saves: tuple[SaveState, ...]
    quantity: Quantity

    @property
    def facts(self) -> HistoryFacts:
        """What the saves show together; places are those of `saves`."""
        return history([save.facts for save in self.saves])


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
    modules: dict[int, tuple[ModuleFacts, ...]] = {}
    for place, checkpoint in enumerate(history.checkpoints):
        if progress is not None:
            progress("reading checkpoints", place, len(history.checkpoints))
        empty = SaveFacts(checkpoint.iteration, checkpoint.source.sha256)
        try:
            adapter = checkpoint.adapter
            facts = replace(
                empty,
                nonfinite=sum(nonfinite_values(adapter).values()),
                tensors=frozenset(adapter.tensors),
            )
            if adapter.modules:
                modules[place] = adapter_facts(adapter, config, base, norms)
                starts = {module.name: module.start for module in modules[place]}
                facts = replace(facts, starts=starts)
            elif base is not None:
                facts = replace(facts, sizes=dict(_whole_weights(adapter, base)))
        except InputError as error:
            saves.append(SaveState(checkpoint, empty, error.problem))
        else:
            saves.append(SaveState(checkpoint, facts))
    quantity = quantity_of([module for saved in modules.values() for module in saved])
    for place, saved in modules.items():
        sizes = {module.name: size_of(module, quantity) for module in saved}
        if not saves[place].problem:
            saves[place] = replace(saves[place], facts=replace(saves[place].facts, sizes=sizes))
    return FollowedHistory(tuple(saves), quantity)


def _whole_weights(adapter: Adapter, base: BaseModel) -> Iterator[tuple[str, float]]:
    """How far whole weights are from the base model's; those it does not have are left out."""
    for tensor in adapter.others:
        name = base_name(tensor.name)
        other = base.tensors.get(name)
        if other is not None and other.shape == tensor.shape and _are_weights(tensor, other):
            moved = change_of(other, tensor)
            yield name, moved.relative if isfinite(moved.relative) else nan


def _are_weights(*tensors: TensorRef) -> bool:
    return all(tensor.is_float for tensor in tensors)


def heat_map(followed: FollowedHistory, broken: Sequence[bool]) -> CheckpointSizes | None:
    """The data of the figure: module or layer by save.

    Args:
        followed: the saves in figures.
        broken: which of them are broken.

    Returns:
        None where no module's size is known.
    """
    names = {name for save in followed.saves for name in save.facts.sizes}
    if not names:
        return None
    by_layer = len(names) > MAX_MODULES
    columns = [_column(save.facts, by_layer=by_layer) for save in followed.saves]
    rows = list(dict.fromkeys(row for column in columns for row in column))
    rows = [rows[place] for place in _even(len(rows), MAX_ROWS)]
    shown = _even(len(columns), MAX_COLUMNS)
    saves = [followed.saves[place].checkpoint for place in shown]
    return CheckpointSizes(
        rows=tuple(rows),
        columns=tuple(str(save.iteration or "final") for save in saves),
        values=tuple(tuple(columns[place].get(row, nan) for place in shown) for row in rows),
        broken=tuple(bool(broken[place]) for place in shown),
        quantity=QUANTITIES[followed.quantity],
    )


def _column(save: SaveFacts, *, by_layer: bool) -> Mapping[str, float]:
    """The sizes of one save by the row of the figure."""
    named = {name: layer_of(name.removesuffix(".weight")) for name in save.sizes}
    if not by_layer:
        return {
            name if named[name][0] is None else " ".join(map(str, named[name])): size
            for name, size in save.sizes.items()
        }
    squares: dict[int | None, list[float]] = {}
    for name, size in save.sizes.items():
        squares.setdefault(named[name][0], []).append(size**2)
    rows = sorted(squares.items(), key=lambda row: (row[0] is None, row[0] or 0))
    return {
        "other" if layer is None else f"layer {layer}": sqrt(sum(values) / len(values))
        for layer, values in rows
    }


def _even(count: int, most: int) -> list[int]:
    """At most so many places among `count`, evenly spaced, the first and the last among them."""
    places = range(count) if count <= most else np.linspace(0, count - 1, most).round()
    return [int(place) for place in places]
