"""The picture of a run's loss: its curves, where it went wrong, and what it is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mlxdoctor.exhibits import Curve, Floor, LossCurve
from mlxdoctor.formats.figures.canvas import BLUE, GREY, LIGHT, ORANGE, RED, figure_and_axes, plain
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.formats.summary import is_finite, number, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A loss this many times its smallest value is drawn on a logarithmic axis.
LOGARITHMIC_FROM = 8.0
#: Points of a curve that are drawn; longer curves are thinned, keeping their extremes.
MAX_POINTS = 600


def thinned(curve: Curve) -> tuple[list[int], list[float]]:
    """At most about `MAX_POINTS` points; each stretch keeps its lowest and highest."""
    iterations, values = curve.iterations, curve.values
    if len(values) <= MAX_POINTS:
        return list(iterations), list(values)
    stretch = math.ceil(2 * len(values) / MAX_POINTS)
    kept: set[int] = {0, len(values) - 1}
    for start in range(0, len(values), stretch):
        indices = range(start, min(start + stretch, len(values)))
        finite = [index for index in indices if is_finite(values[index])]
        kept |= {indices[0]} if not finite else set()
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    order = sorted(kept)
    return [iterations[index] for index in order], [values[index] for index in order]


def caption(loss: LossCurve) -> str:
    """First, lowest and last losses, the onset and the floors."""
    parts = [*_told("training loss", loss.train, loss.axis)]
    parts += _told("validation loss", loss.val, loss.axis)
    if loss.onset is not None:
        parts.append(f"it goes wrong at {loss.axis} {loss.onset:,}")
    parts += [f"{one.label} {number(one.value)}" for one in loss.floors]
    return sentence("Loss in nats a token: " + "; ".join(parts))


def _told(name: str, curve: Curve | None, axis: str) -> Iterator[str]:
    if curve is None or not curve.values:
        return
    points = list(zip(curve.values, curve.iterations, strict=True))
    (first, start), (last, end) = points[0], points[-1]
    text = f"{name} {number(first)} at {axis} {start:,}"
    if finite := [one for one in points if is_finite(one[0])]:
        lowest, at = min(finite)
        text += f", lowest {number(lowest)} at {at:,}"
    yield f"{text}, last {number(last)} at {end:,}"


def draw(loss: LossCurve) -> Figure:
    """The loss over the run."""
    figure, axes = figure_and_axes(7.6, 3.9)
    series = (
        ("training loss", loss.train, BLUE, "o"),
        ("validation loss", loss.val, ORANGE, "s"),
    )
    finite: list[float] = []
    broken: list[int] = []
    for label, curve, colour, marker in series:
        if curve is None:
            continue
        iterations, values = thinned(curve)
        drawn = [value if is_finite(value) else math.nan for value in values]
        few = len(drawn) <= 60
        axes.plot(
            iterations,
            drawn,
            color=colour,
            label=label,
            linewidth=1.6,
            marker=marker if few or curve is loss.val else None,
            markersize=3.5,
        )
        finite += [value for value in values if is_finite(value)]
        broken += [at for at, one in zip(iterations, values, strict=True) if not is_finite(one)]
    axes.set_xlabel(plain(loss.axis))
    axes.set_ylabel("loss (nats a token)")
    _loss_scale(axes, loss, finite)
    _loss_marks(axes, loss, broken)
    axes.set_title("Loss over the run", pad=18 if loss.onset is not None else 8)
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _loss_scale(axes: Axes, loss: LossCurve, finite: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = [*finite, *(floor.value for floor in loss.floors)]
    if not shown:
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    low, high = min(shown), max(shown)
    if low > 0 and finite and max(finite) > LOGARITHMIC_FROM * min(finite):
        axes.set_yscale("log")
        axes.set_ylabel("loss (nats a token), logarithmic")
        axes.set_ylim(low / 1.25, high * 1.35)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        if high / low < 200:
            ticks = [
                digit * 10.0**power
                for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
                for digit in (1, 2, 5)
            ]
            axes.set_yticks([tick for tick in ticks if low / 1.25 <= tick <= high * 1.35])
        axes.minorticks_off()
    else:
        margin = 0.08 * (high - low) or 1.0
        # Far from zero, starting there would flatten the curve.
        axes.set_ylim(low - margin if low > 0.35 * high else min(0.0, low), high + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _loss_marks(axes: Axes, loss: LossCurve, broken: Sequence[int]) -> None:
    for floor, place in zip(loss.floors, _apart(axes, loss.floors), strict=True):
        axes.axhline(floor.value, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{plain(floor.label, 34)}\n{number(floor.value)}",
            xy=(1, floor.value),
            xycoords=("axes fraction", "data"),
            xytext=(1.02, place),
            textcoords="axes fraction",
            va="center",
            fontsize=7.5,
            color="#444444",
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6},
        )
    if broken:
        axes.plot(
            broken,
            [0.97] * len(broken),
            linestyle="none",
            marker="x",
            color=RED,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label="NaN or infinite",
            clip_on=False,
        )
    if loss.onset is not None:
        axes.axvline(loss.onset, color=RED, linewidth=1.2, linestyle=":")
        left, right = axes.get_xlim()
        past_middle = (loss.onset - left) / (right - left) > 0.6 if right > left else False
        axes.annotate(
            f"goes wrong at {loss.onset:,}",
            xy=(loss.onset, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if past_middle else 4, 3),
            textcoords="offset points",
            ha="right" if past_middle else "left",
            fontsize=8,
            color=RED,
        )


def _apart(axes: Axes, floors: Sequence[Floor]) -> list[float]:
    """Heights for the floors' labels (axes fraction), in their order but not overlapping."""
    gap = 0.13
    bottom, top = axes.get_ylim()
    scale = math.log10 if axes.get_yscale() == "log" else float
    span = scale(top) - scale(bottom)
    wanted = [(scale(floor.value) - scale(bottom)) / span for floor in floors]
    placed: dict[int, float] = {}
    previous = -gap
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        placed[index] = previous = max(wanted[index], previous + gap)
    overshoot = max(0.0, previous - 1.0)
    return [placed[index] - overshoot for index in range(len(wanted))]


PICTURE = Picture(LossCurve, "The loss over the run", caption, draw)
