"""The picture of a run's checkpoints: the size of every update at every save."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.formats.figures.canvas import GREY, LIGHT, RED, figure_and_axes, plain, style
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.formats.summary import is_finite, number, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Row labels that fit beside each other.
MAX_LABELS = 32
#: Column labels that fit beside each other.
MAX_NUMBERS = 14


def caption(saved: CheckpointSizes) -> str:
    """From the smallest to the largest, and how many are broken."""
    sizes = [value for row in saved.values for value in row if is_finite(value)]
    text = f"Size of the update ({saved.quantity}) at {len(saved.columns)} checkpoints"
    if sizes:
        text += f", from {number(min(sizes))} to {number(max(sizes))}"
    condemned = zip(saved.columns, saved.broken, strict=True)
    broken = [column for column, is_broken in condemned if is_broken]
    text += f"; {len(broken)} are broken, the first {broken[0]}" if broken else "; none is broken"
    return sentence(text)


def svg(saved: CheckpointSizes) -> bytes:
    """The figure as SVG, the same on every machine and at every time."""
    # Names of clip paths are hashed with a random salt otherwise.
    with style({"svg.hashsalt": "mlxdoctor"}):
        buffer = io.BytesIO()
        metadata = {"Date": None, "Creator": None}
        draw(saved).savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue()


def draw(saved: CheckpointSizes) -> Figure:
    """The sizes as a heat map; broken saves are marked, and so is what is not finite or zero."""
    import numpy as np
    from matplotlib.colors import LogNorm

    rows, columns = list(saved.rows), list(saved.columns)
    values = np.array(saved.values, dtype=float).reshape(len(rows), len(columns))
    figure, axes = figure_and_axes(
        min(9.0, 3.4 + 0.34 * len(columns)), min(9.0, 2.0 + 0.17 * max(6, len(rows)))
    )
    finite = values[np.isfinite(values) & (values > 0)]
    wide = bool(finite.size) and bool(finite.max() > 20 * finite.min())
    image = axes.imshow(
        np.ma.masked_where(~(values > 0), values),
        aspect="auto",
        cmap="viridis",
        norm=LogNorm(finite.min(), finite.max()) if wide else None,
        vmin=None if wide else 0.0,
        interpolation="nearest",
    )
    axes.set_facecolor(LIGHT)
    step = -(-len(columns) // MAX_NUMBERS)
    axes.set_xticks(range(0, len(columns), step), [plain(one) for one in columns[::step]])
    step = -(-len(rows) // MAX_LABELS)
    axes.set_yticks(range(0, len(rows), step), [plain(one, 40) for one in rows[::step]])
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_visible(False)
    _marked(axes, np.argwhere(~np.isfinite(values)), "x", RED, "not finite")
    _marked(axes, np.argwhere(values == 0), ".", GREY, "no update")
    broken = [at for at, one in enumerate(saved.broken) if one]
    if broken:
        above = [(-0.85, at) for at in broken]
        _marked(axes, np.array(above), "v", RED, "broken checkpoint", is_outside=True)
    # A marker above the first row must not make room for itself inside.
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("checkpoint")
    axes.set_title("Size of the update at each checkpoint", pad=14)
    if finite.size:
        bar = figure.colorbar(image, ax=axes)
        bar.set_label(plain(saved.quantity, 60))
        bar.outline.set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _marked(
    axes: Any, places: Any, marker: str, colour: str, label: str, *, is_outside: bool = False
) -> None:
    if len(places):
        axes.scatter(
            places[:, 1],
            places[:, 0],
            marker=marker,
            s=16,
            c=colour,
            label=label,
            linewidths=1.0,
            clip_on=not is_outside,
        )


PICTURE = Picture(CheckpointSizes, "The size of the update at each checkpoint", caption, draw)
