"""The picture of an update: its size by layer and module."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlxdoctor.exhibits import DriftByLayer
from mlxdoctor.formats.figures.canvas import LIGHT, figure_and_axes, plain
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.formats.summary import is_finite, number, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_HEAT_ROWS = 80


def caption(drift: DriftByLayer) -> str:
    """From the smallest to the largest, and where that is."""
    cells = [
        (value, row, column)
        for row, values in zip(drift.rows, drift.values, strict=True)
        for column, value in zip(drift.columns, values, strict=True)
        if is_finite(value)
    ]
    text = f"Size of the update ({drift.quantity}) by layer and module"
    if cells:
        largest, row, column = max(cells)
        text += f": from {number(min(cells)[0])} to {number(largest)} ({row}, {column})"
    return sentence(text)


def draw(drift: DriftByLayer) -> Figure:
    import numpy as np
    from matplotlib.colors import LogNorm

    rows, columns = list(drift.rows), list(drift.columns)
    values = np.array(drift.values, dtype=float).reshape(len(rows), len(columns))
    if len(rows) > MAX_HEAT_ROWS:
        chosen = np.linspace(0, len(rows) - 1, MAX_HEAT_ROWS).astype(int)
        rows, values = [rows[index] for index in chosen], values[chosen]
    figure, axes = figure_and_axes(
        min(9.0, 3.2 + 0.75 * len(columns)), min(9.0, 1.9 + 0.24 * max(4, len(rows)))
    )
    finite = values[np.isfinite(values) & (values > 0)]
    wide = bool(finite.size) and bool(finite.max() > 20 * finite.min())
    image = axes.imshow(
        np.ma.masked_invalid(values),
        aspect="auto",
        cmap="viridis",
        norm=LogNorm(finite.min(), finite.max()) if wide else None,
        vmin=None if wide else 0.0,
    )
    axes.set_facecolor(LIGHT)
    axes.set_xticks(range(len(columns)), [plain(one, 30) for one in columns])
    axes.tick_params(axis="x", labelrotation=35 if len(columns) > 3 else 0)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right" if len(columns) > 3 else "center")
    step = math.ceil(len(rows) / 32)
    axes.set_yticks(range(0, len(rows), step), [plain(one) for one in rows[::step]])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if values.size <= 96:
        _heat_numbers(axes, values, image, is_log=wide)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(plain(drift.quantity, 60))
    bar.outline.set_visible(False)
    axes.set_title("Size of the update")
    return figure


def _heat_numbers(axes: Axes, values: Any, image: Any, *, is_log: bool) -> None:
    import numpy as np

    for (row, column), one in np.ndenumerate(values):
        value = float(one)
        if not is_finite(value):
            continue
        # A logarithmic scale has no place for zero: the cell is as light as a missing one.
        light = (is_log and value <= 0) or image.norm(value) > 0.55
        axes.text(
            column,
            row,
            f"{value:,.0f}" if 100 <= value < 1e5 else f"{value:.2g}",
            ha="center",
            va="center",
            fontsize=7.5,
            color="#1a1a1a" if light else "#ffffff",
        )


PICTURE = Picture(DriftByLayer, "The size of the update by layer and module", caption, draw)
