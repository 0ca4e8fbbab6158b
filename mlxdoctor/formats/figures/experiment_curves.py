"""The picture of a reproduction: the losses of all reruns in one frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mlxdoctor.confirmation import Rerun
from mlxdoctor.formats.figures.canvas import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    figure_and_axes,
    plain,
)
from mlxdoctor.formats.figures.loss_curve import thinned
from mlxdoctor.formats.summary import is_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Kind of experiment -> colour and line.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "as recorded": (ORANGE, "-"),
    "trial": (GREY, ":"),
    "another order": (GREY, "--"),
    "random rows": (GREY, "--"),
    "change": (BLUE, "-"),
    "repair": (BLUE, "-"),
    "injection": (GREEN, "-."),
    "probe": (LIGHT, "-"),
}
#: Probes are many: one entry in the legend stands for all of them.
_PROBES = "between the two configurations"
#: A loss that explodes leaves the picture at this many times the highest first one.
_TALLEST = 3.0
#: No loss of a text begins above this (nats a token; ln of a million tokens is 13.8).
_HIGHEST = 20.0


def draw_reruns(made: Sequence[Rerun]) -> Figure:
    """The training loss of each rerun, one colour and line a kind, one label a condition."""
    figure, axes = figure_and_axes(7.6, 3.9)
    labelled: set[str] = set()
    top = _top([one.curve.values for one in made])
    for one in made:
        iterations, values = thinned(one.curve)
        colour, line = _LOOKS[one.experiment]
        label = _PROBES if one.experiment == "probe" else plain(one.label, 44)
        axes.plot(
            iterations,
            [min(value, 2 * top) if is_finite(value) else math.nan for value in values],
            color=colour,
            linestyle=line,
            linewidth=1.3,
            alpha=0.85,
            zorder=1 if one.experiment == "probe" else 2,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss (nats a token)")
    axes.set_ylim(0.0, min(axes.get_ylim()[1], top))
    axes.set_title("Loss of every experiment")
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _top(curves: Sequence[Sequence[float]]) -> float:
    """Where the picture ends: high enough for every curve that does not explode."""
    first = [curve[0] for curve in curves if len(curve) and is_finite(curve[0])]
    return _TALLEST * max((one for one in first if 0 < one < _HIGHEST), default=_HIGHEST)
