"""The sizes of all updates over all saves, as the data of a picture and as an SVG file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import isfinite, nan, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from mlxdoctor.measure.weights.saves import FollowedHistory, ModuleState, Quantity

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


def heat_map(followed: FollowedHistory, broken: Sequence[bool]) -> dict[str, Any] | None:
    """The data of the figure: module or layer by save, as the report describes it.

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
    return {
        "rows": rows,
        "columns": [str(followed.saves[at].checkpoint.iteration or "final") for at in shown],
        "values": [[columns[at].get(row, nan) for at in shown] for row in rows],
        "broken": [bool(broken[at]) for at in shown],
        "quantity": QUANTITIES[followed.quantity],
    }


def svg(data: Mapping[str, Any]) -> bytes:
    """The figure as SVG, the same on every machine and at every time.

    Args:
        data: as `heat_map` gives it.
    """
    import matplotlib as mpl

    from mlxdoctor.formats.figures.canvas import STYLE
    from mlxdoctor.formats.figures.checkpoint_sizes import draw_checkpoints

    # Names of clip paths are hashed with a random salt otherwise.
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE, "svg.hashsalt": "mlxdoctor"}
    with mpl.rc_context(settings):
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": None}
        draw_checkpoints(data).savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue()


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


def _even(values: list[Any], count: int) -> list[Any]:
    """At most `count` of the values, evenly spaced, the first and the last among them."""
    if len(values) <= count:
        return values
    return [values[at] for at in np.linspace(0, len(values) - 1, count).round().astype(int)]
