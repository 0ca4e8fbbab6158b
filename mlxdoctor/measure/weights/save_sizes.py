"""The sizes of all updates over all saves, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan, sqrt
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.measure.weights.save_norms import FollowedHistory, ModuleState, Quantity

T = TypeVar("T")

#: What the sizes of updates are called in a table or a figure.
QUANTITIES: Mapping[Quantity, str] = MappingProxyType(
    {
        "relative": "‖ΔW‖/‖W‖",
        "nominal": "‖ΔW‖/usual ‖W‖",
        "unscaled": "‖A·B‖, scale not known",
    }
)
#: More modules than this are drawn layer by layer, as root mean squares.
MAX_MODULES = 64
#: More layers or saves than this are drawn at even distances.
MAX_ROWS, MAX_COLUMNS = 64, 60


def heat_map(followed: FollowedHistory, broken: Sequence[bool]) -> CheckpointSizes | None:
    """The data of the figure: module or layer by save.

    Args:
        followed: the saves in figures.
        broken: which of them are broken.

    Returns:
        None where no module's size is known.
    """
    names = {one.name for save in followed.saves for one in save.modules}
    if not names:
        return None
    by_layer = len(names) > MAX_MODULES
    columns = [_column(save.modules, by_layer=by_layer) for save in followed.saves]
    rows = _even(list(dict.fromkeys(row for column in columns for row in column)), MAX_ROWS)
    shown = _even(list(range(len(columns))), MAX_COLUMNS)
    return CheckpointSizes(
        rows=tuple(rows),
        columns=tuple(str(followed.saves[at].checkpoint.iteration or "final") for at in shown),
        values=tuple(tuple(columns[at].get(row, nan) for at in shown) for row in rows),
        broken=tuple(bool(broken[at]) for at in shown),
        quantity=QUANTITIES[followed.quantity],
    )


def _column(modules: Sequence[ModuleState], *, by_layer: bool) -> dict[str, float]:
    sizes = {one: 0.0 if one.is_zero else one.size for one in modules}
    if not by_layer:
        return {
            one.name if one.layer is None else f"{one.layer} {one.projection}": size
            for one, size in sizes.items()
        }
    squares: dict[str, list[float]] = {}
    for one, size in sizes.items():
        row = "other" if one.layer is None else f"layer {one.layer}"
        squares.setdefault(row, []).append(size**2)
    return {
        row: sqrt(sum(found) / len(found)) if all(map(isfinite, found)) else nan
        for row, found in squares.items()
    }


def _even(values: list[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= count:
        return values
    return [values[at] for at in np.linspace(0, len(values) - 1, count).round().astype(int)]
