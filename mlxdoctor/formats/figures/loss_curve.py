"""The picture of a run's loss: its curves, where it went wrong, and what it is measured against."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats.figures.canvas import BLUE, GREY, LIGHT, ORANGE, RED, figure_and_axes, plain
from mlxdoctor.formats.summary import is_finite, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A loss this many times its smallest value is drawn on a logarithmic axis.
LOGARITHMIC_FROM = 8.0
#: Points of a curve that are drawn; longer curves are thinned, keeping their extremes.
MAX_POINTS = 600


def thinned(iterations: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """At most about `MAX_POINTS` points; each stretch keeps its lowest and highest."""
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


def draw_loss(loss: Mapping[str, Any]) -> Figure:
    """The loss over the run; `loss` is a `model.LossFigure`."""
    figure, axes = figure_and_axes(7.6, 3.9)
    series = (("training loss", "train", BLUE, "o"), ("validation loss", "val", ORANGE, "s"))
    finite: list[float] = []
    broken: list[int] = []
    for label, key, colour, marker in series:
        if loss[key] is None:
            continue
        iterations, values = thinned(loss[key]["iterations"], loss[key]["values"])
        drawn = [value if is_finite(value) else math.nan for value in values]
        few = len(drawn) <= 60
        axes.plot(
            iterations,
            drawn,
            color=colour,
            label=label,
            linewidth=1.6,
            marker=marker if few or key == "val" else None,
            markersize=3.5,
        )
        finite += [value for value in values if is_finite(value)]
        broken += [at for at, one in zip(iterations, values, strict=True) if not is_finite(one)]
    axes.set_xlabel(plain(loss["axis"]))
    axes.set_ylabel("loss (nats a token)")
    _loss_scale(axes, loss, finite)
    _loss_marks(axes, loss, broken)
    axes.set_title("Loss over the run", pad=18 if loss["onset"] is not None else 8)
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _loss_scale(axes: Axes, loss: Mapping[str, Any], finite: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    shown = [*finite, *(floor["value"] for floor in loss["floors"])]
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


def _loss_marks(axes: Axes, loss: Mapping[str, Any], broken: Sequence[int]) -> None:
    for floor, place in zip(loss["floors"], _apart(axes, loss["floors"]), strict=True):
        axes.axhline(floor["value"], color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{plain(floor['label'], 34)}\n{number(floor['value'])}",
            xy=(1, floor["value"]),
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
    if loss["onset"] is not None:
        axes.axvline(loss["onset"], color=RED, linewidth=1.2, linestyle=":")
        left, right = axes.get_xlim()
        past_middle = (loss["onset"] - left) / (right - left) > 0.6 if right > left else False
        axes.annotate(
            f"goes wrong at {loss['onset']:,}",
            xy=(loss["onset"], 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if past_middle else 4, 3),
            textcoords="offset points",
            ha="right" if past_middle else "left",
            fontsize=8,
            color=RED,
        )


def _apart(axes: Axes, floors: Sequence[Mapping[str, Any]]) -> list[float]:
    """Heights for the floors' labels (axes fraction), in their order but not overlapping."""
    gap = 0.13
    bottom, top = axes.get_ylim()
    scale = math.log10 if axes.get_yscale() == "log" else float
    span = scale(top) - scale(bottom)
    wanted = [(scale(floor["value"]) - scale(bottom)) / span for floor in floors]
    placed: dict[int, float] = {}
    previous = -gap
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        placed[index] = previous = max(wanted[index], previous + gap)
    overshoot = max(0.0, previous - 1.0)
    return [placed[index] - overshoot for index in range(len(wanted))]
