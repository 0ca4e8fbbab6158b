"""The figures of a report: a caption in words, and a small PNG, the same on every machine."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxdoctor.exhibits import Curve, Floor, LossCurve, ReplayCurve
from mlxdoctor.formats.summary import number, sentence
from mlxdoctor.report import Report
from mlxdoctor.safety.quoting import visible
from mlxdoctor.verdict import Rerun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, LIGHT = "#6b6b6b", "#e4e4e4"
STYLE = {
    "agg.path.chunksize": 10_000,  # a curve of a million reports is one path
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.labelsize": 9,
    "figure.dpi": 110,
    "font.size": 9,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
#: A loss this many times its smallest value is drawn on a logarithmic axis, and begins at zero
#: where it comes down to this share of its largest.
LOGARITHMIC_FROM, FROM_ZERO = 8.0, 0.35
#: Points of a curve that are marked one by one.
MARKED_POINTS = 60
#: Characters that fit beside each other in a legend; a sample of the line takes 8.
LEGEND_CHARACTERS = 110
#: Dashes of the levels that a loss can be compared with.
_DASHES = ((4, 3), (1, 2), (8, 3), (4, 2, 1, 2))
#: A loss that explodes leaves the picture at this many times the untouched model's, or the highest
#: loss that a rerun began with.
_TALLEST = 1.5
#: No loss of a text begins above this (nats a token; ln of a million tokens is 13.8).
_HIGHEST = 20.0
#: Kind of rerun -> colour and line.
_RERUN_LOOKS: Mapping[str, tuple[str, str]] = {
    "as recorded": (ORANGE, "-"),
    "another order": (GREY, "--"),
    "random rows": (GREY, "--"),
    "change": (BLUE, "-"),
    "repair": (BLUE, "-"),
    "injection": (GREEN, "-."),
}


@dataclass(frozen=True)
class Shown:
    """How one kind of exhibit is shown: its caption, its title, and how it is drawn."""

    caption: Callable[[Any], str]
    title: str
    paint: Callable[[Figure, Axes, Any], None]


def path_of(name: str) -> str:
    """The file of a figure, relative to the report."""
    return f"figures/{name}.png"


def captions(report: Report) -> dict[str, str]:
    """What each figure shows, in words with its figures, for those that have data."""
    return {name: FIGURES[name].caption(exhibit) for name, exhibit in report.figures.items()}


def draw(report: Report) -> dict[str, bytes]:
    """The figures that have data, as PNG, by name."""
    exhibits = {**report.figures, **({"experiments": report.reruns} if report.reruns else {})}
    return {name: png(name, shown) for name, shown in exhibits.items()}


def png(name: str, shown: Any) -> bytes:
    """What one figure shows, as PNG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE}
    # To ask for a backend imports pyplot, which looks for one; figures here have their own canvas.
    del settings["backend"]
    buffer = io.BytesIO()
    # What is drawn looks the same whatever a user's matplotlibrc says.
    with mpl.rc_context(settings):
        canvas: Any = FigureCanvasAgg(painted(name, shown))
        # `savefig` draws twice. Matplotlib would write its version into the file.
        canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def painted(name: str, shown: Any) -> Figure:
    """One figure, in whatever style is set."""
    from matplotlib.figure import Figure

    described = FIGURES[name]
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(described.title)
    described.paint(figure, axes, shown)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = max(1, LEGEND_CHARACTERS // (8 + max(map(len, labels))))
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def plain(text: str, limit: int = 24) -> str:
    """`text` as matplotlib draws it literally, with glyphs that its own font has."""
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    known = "".join(
        char if font.get_char_index(ord(char)) else f"\\u{ord(char):04x}" for char in visible(text)
    )
    if len(known) > limit:
        known = known[: limit - 1] + "…"
    # An even number of dollar signs would be set as a formula.
    return known.replace("$", r"\$")


def _paint_losses(
    figure: Figure,
    axes: Axes,
    counted: str,
    lines: Iterable[tuple[Curve, str, Mapping[str, Any]]],
    *,
    levels: Sequence[Floor] = (),
    top: float = math.inf,
) -> None:
    """Losses in nats a token, over what is counted; those above the top are drawn there."""
    # A line is a curve, its label in the legend ("" for none), and how matplotlib draws it.
    from matplotlib.ticker import MaxNLocator

    figure.set_size_inches(7.6, 4.0)
    axes.set_xlabel(plain(counted))
    axes.set_ylabel("loss (nats a token)")
    axes.grid(axis="y")
    losses: list[float] = []
    broken: list[float] = []
    for curve, label, look in lines:
        # Not a number interrupts the line.
        y = [min(loss, top) if math.isfinite(loss) else math.nan for loss in curve.values]
        axes.plot(curve.iterations, y, label=label or None, markersize=3.5, **look)
        losses += [loss for loss in y if math.isfinite(loss)]
        broken += [x for x, loss in zip(curve.iterations, y, strict=True) if math.isnan(loss)]
    for level, dash in zip(levels, _DASHES, strict=False):
        look = {"color": GREY, "linewidth": 0.9, "linestyle": (0, dash)}
        label = f"{plain(level.label, 34)}: {number(level.value)}"
        axes.axhline(level.value, label=label, **look)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    _loss_scale(axes, [*losses, *(level.value for level in levels)], losses)
    if broken:
        # At the upper edge: they have no value of their own.
        edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        marks = [0.97] * len(broken)
        axes.plot(broken, marks, "x", color=RED, markersize=5, label="NaN or infinite", **edge)


def _loss_scale(axes: Axes, levels: Sequence[float], losses: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    low, high = min(levels, default=0.0), max(levels, default=1.0)
    if low > 0 and losses and max(losses) > LOGARITHMIC_FROM * min(losses):
        axes.set_yscale("log")
        axes.set_ylabel("loss (nats a token), logarithmic")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        axes.minorticks_off()
    elif low <= FROM_ZERO * high:
        # Far from zero, starting there would flatten the curve.
        axes.set_ylim(bottom=min(0.0, low))


def _loss_caption(loss: LossCurve) -> str:
    """First, lowest and last losses, the onset and the floors."""
    parts = [*_course("training loss", loss.train, loss.axis)]
    parts += _course("validation loss", loss.val, loss.axis)
    if loss.onset is not None:
        parts.append(f"it goes wrong at {loss.axis} {loss.onset:,}")
    parts += [f"{floor.label} {number(floor.value)}" for floor in loss.floors]
    return sentence("Loss in nats a token: " + "; ".join(parts))


def _course(name: str, curve: Curve | None, axis: str) -> Iterator[str]:
    if curve is None or not curve.values:
        return
    points = list(zip(curve.values, curve.iterations, strict=True))
    (first, start), (last, end) = points[0], points[-1]
    text = f"{name} {number(first)} at {axis} {start:,}"
    if finite := [point for point in points if math.isfinite(point[0])]:
        lowest, iteration = min(finite)
        text += f", lowest {number(lowest)} at {iteration:,}"
    yield f"{text}, last {number(last)} at {end:,}"


def _paint_run(figure: Figure, axes: Axes, loss: LossCurve) -> None:
    lines: list[tuple[Curve, str, Mapping[str, Any]]] = []
    if loss.train is not None:
        marker = "o" if len(loss.train.values) <= MARKED_POINTS else None
        lines.append((loss.train, "training loss", {"color": BLUE, "marker": marker}))
    if loss.val is not None:
        lines.append((loss.val, "validation loss", {"color": ORANGE, "marker": "s"}))
    _paint_losses(figure, axes, loss.axis, lines, levels=loss.floors)
    if loss.onset is not None:
        label = f"goes wrong at {loss.onset:,}"
        axes.axvline(loss.onset, linewidth=1.2, label=label, color=RED, linestyle=":")


def _replay_caption(curve: ReplayCurve) -> str:
    """The first and the last recorded loss, and what is computed for each."""
    parts = [
        f"{number(recorded)} at iteration {iteration}, computed {number(computed)}"
        for iteration, recorded, computed in zip(
            curve.recorded.iterations, curve.recorded.values, curve.computed.values, strict=True
        )
    ]
    text = "The log's first losses and those that mlx-lm computes: " + "; ".join(parts)
    return sentence(text + (f". They are those {curve.clause}" if curve.clause else ""))


def _paint_replay(figure: Figure, axes: Axes, curve: ReplayCurve) -> None:
    lines: list[tuple[Curve, str, Mapping[str, Any]]] = [
        (curve.recorded, "in the log", {"color": BLUE, "marker": "o"}),
        (curve.computed, "as mlx-lm computes them", {"color": ORANGE, "marker": "s"}),
    ]
    if curve.read is not None:
        lines.append((curve.read, plain(curve.clause, 44), {"color": RED, "marker": "x"}))
    _paint_losses(figure, axes, "iteration", lines)


def _paint_reruns(figure: Figure, axes: Axes, reruns: Sequence[Rerun]) -> None:
    """One colour and line a kind of rerun, one label a condition."""
    starts = [rerun.curve.values[0] for rerun in reruns if rerun.curve.values]
    labels: set[str] = set()
    lines = []
    for rerun in reruns:
        colour, dashes = _RERUN_LOOKS[rerun.experiment]
        label = "" if rerun.label in labels else plain(rerun.label, 44)
        lines.append((rerun.curve, label, {"color": colour, "linestyle": dashes}))
        labels.add(rerun.label)
    first = [loss for loss in starts if math.isfinite(loss) and 0 < loss < _HIGHEST]
    _paint_losses(figure, axes, "iteration", lines, top=_TALLEST * max(first, default=_HIGHEST))


#: Every figure, by its name.
FIGURES: Mapping[str, Shown] = {
    "loss": Shown(_loss_caption, "The loss over the run", _paint_run),
    "replay": Shown(
        _replay_caption, "The first losses, recorded and computed again", _paint_replay
    ),
    "experiments": Shown(lambda _: "", "The loss of every rerun", _paint_reruns),
}
