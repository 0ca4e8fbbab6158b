"""The picture of a reproduction: the losses of all reruns in one frame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxdoctor.report.canvas import BLUE, GREEN, GREY, LIGHT, ORANGE, figure_and_axes, plain
from mlxdoctor.report.loss_figure import thinned
from mlxdoctor.report.summary import is_finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Kind of experiment -> colour and line.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "as recorded": (ORANGE, "-"),
    "another order": (GREY, "--"),
    "change": (BLUE, "-"),
    "repair": (BLUE, "-"),
    "injection": (GREEN, "-."),
}


def draw_experiments(experiments: Sequence[Mapping[str, Any]]) -> Figure:
    """The training loss of each rerun, one colour and line a kind, one label a condition."""
    figure, axes = figure_and_axes(7.6, 3.9)
    labelled: set[str] = set()
    for one in experiments:
        curve = one.get("curve")
        if not curve:
            continue
        iterations, values = thinned(curve["iterations"], curve["values"])
        colour, line = _LOOKS[one["experiment"]]
        label = plain(one["label"], 44)
        axes.plot(
            iterations,
            [value if is_finite(value) else math.nan for value in values],
            color=colour,
            linestyle=line,
            linewidth=1.3,
            alpha=0.85,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("loss (nats a token)")
    axes.set_ylim(bottom=0.0)
    axes.set_title("Loss of every experiment")
    axes.grid(axis="y", color=LIGHT, linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
