"""The pictures of a report, as small PNG files that are the same on every machine.

`PICTURES` is the table of them. A picture paints one exhibit on empty axes; size, style, title and
legend are added here. Series differ by colour and also by marker, line, hatching or label.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mlxdoctor.confirmation import Rerun
from mlxdoctor.exhibits import (
    CheckpointSizes,
    Curve,
    DriftByLayer,
    LabelStrip,
    LossCurve,
    RateCurve,
    TokenShares,
)
from mlxdoctor.formats import escape
from mlxdoctor.formats.summary import is_finite, number, sentence
from mlxdoctor.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, LIGHT = "#6b6b6b", "#e4e4e4"
MONOSPACED = "DejaVu Sans Mono"
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
    "savefig.dpi": "figure",
    "svg.hashsalt": "mlxdoctor",  # the names of clip paths are random otherwise
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
#: What matplotlib would write into a file of its version and the time.
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}
#: No heat map is wider or higher (inches).
MAX_INCHES = 9.0
#: A loss this many times its smallest value is drawn on a logarithmic axis.
LOGARITHMIC_FROM = 8.0
#: Points of a curve that are marked one by one.
MARKED_POINTS = 60
#: Sizes this many times the smallest are coloured on a logarithmic scale.
LOGARITHMIC_COLOURS_FROM = 20.0
#: Labels that fit beside a heat map, and below it.
MAX_ROW_LABELS, MAX_COLUMN_LABELS = 32, 14
#: Cells of a heat map in which numbers can be read.
MAX_NUMBERED_CELLS = 96
#: Characters that fit beside each other in a legend; a sample of the line takes 8.
LEGEND_CHARACTERS = 110
MAX_TOKENS_SHOWN = 12
#: Tokens of a label strip: its beginning and its end are shown. Characters in one of its lines.
MAX_STRIP_TOKENS, STRIP_COLUMNS = 120, 116
_REGION_COLOURS = {
    "prompt": "#b9b9b9",
    "answer": "#56B4E9",
    "end": GREEN,
    "pad": RED,
    "other": "#CC79A7",
}
#: Kind of rerun -> colour and line.
_RERUN_LOOKS: Mapping[str, tuple[str, str]] = {
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
#: A loss that explodes leaves the picture of the reruns at this many times the highest first one.
_TALLEST = 3.0
#: No loss of a text begins above this (nats a token; ln of a million tokens is 13.8).
_HIGHEST = 20.0


@dataclass(frozen=True)
class Picture:
    """How one kind of exhibit is shown.

    Attributes:
        title: what the picture is called.
        caption: what an exhibit shows, in words with its figures.
        paint: draws an exhibit on empty axes and gives the picture its size; what has a label
            comes into the legend.
    """

    title: str
    caption: Callable[[Any], str]
    paint: Callable[[Figure, Axes, Any], None]


def path_of(name: str) -> str:
    """The file of a figure, relative to the report."""
    return f"figures/{name}.png"


def all_paths() -> list[str]:
    """The files of all figures that a report can have."""
    return [path_of(name) for name in PICTURES]


def captions(report: Report) -> dict[str, str]:
    """What each figure shows, in words with its figures, for those that have data."""
    return {
        name: PICTURES[name].caption(exhibit)
        for name, exhibit in report.figures.items()
        if name in PICTURES
    }


def draw(report: Report) -> dict[str, bytes]:
    """The figures that have data, as PNG, by name."""
    exhibits = {**report.figures, **({"experiments": report.reruns} if report.reruns else {})}
    return {name: _png(name, shown) for name, shown in exhibits.items() if name in PICTURES}


def svg(saved: CheckpointSizes) -> bytes:
    """The sizes at each checkpoint as SVG, the same on every machine and at every time."""
    return _saved("checkpoints", saved, "svg")


def _png(name: str, shown: Any) -> bytes:
    try:
        hash(shown)
    except TypeError:  # of another package's check, with a list in it
        return _saved(name, shown)
    return drawn_once(name, shown)


@lru_cache(maxsize=16)
def drawn_once(name: str, shown: Any) -> bytes:
    """One figure, as PNG; the formats of a report have the same pictures."""
    return _saved(name, shown)


def _saved(name: str, shown: Any, kind: str = "png") -> bytes:
    import matplotlib as mpl

    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE}
    # To ask for a backend imports pyplot, which looks for one; figures here have their own canvas.
    del settings["backend"]
    buffer = io.BytesIO()
    # What is drawn looks the same whatever a user's matplotlibrc says.
    with mpl.rc_context(settings):
        painted(name, shown).savefig(buffer, format=kind, metadata=dict(_METADATA[kind]))
    return buffer.getvalue()


def painted(name: str, shown: Any) -> Figure:
    """One figure, in whatever style is set."""
    from matplotlib.figure import Figure

    picture = PICTURES[name]
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(picture.title)
    picture.paint(figure, axes, shown)
    if labels := axes.get_legend_handles_labels()[1]:
        columns = max(1, LEGEND_CHARACTERS // (8 + max(map(len, labels))))
        figure.legend(loc="outside lower center", ncols=columns)
    return figure


def plain(text: str, limit: int = 24) -> str:
    """`text` as matplotlib draws it literally, with glyphs that its own font has."""
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    visible = escape.visible(text)
    known = "".join(
        char if font.get_char_index(ord(char)) else f"\\u{ord(char):04x}" for char in visible
    )
    if len(known) > limit:
        known = known[: limit - 1] + "…"
    # An even number of dollar signs would be set as a formula.
    return known.replace("$", r"\$")


def _token_text(text: str, limit: int) -> str:
    """A token with its blanks to be seen."""
    return plain(text.replace(" ", "·"), limit) or "(empty)"


def _series(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str, **look: Any) -> None:
    """A line that is interrupted where a value is not finite."""
    drawn = [value if is_finite(value) else math.nan for value in y]
    axes.plot(x, drawn, color=colour, markersize=3.5, **look)


def _edge_marks(axes: Axes, x: Sequence[float], height: float, marker: str, label: str) -> None:
    """Marks in a row at a height of 0 to 1 of the axes, for what has no value of its own."""
    if x:
        edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot(x, [height] * len(x), marker, color=RED, markersize=5, label=label, **edge)


def _loss_axes(axes: Axes, counted: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(counted)
    axes.set_ylabel("loss (nats a token)")
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y")


# The loss over the run.


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
    if finite := [point for point in points if is_finite(point[0])]:
        lowest, iteration = min(finite)
        text += f", lowest {number(lowest)} at {iteration:,}"
    yield f"{text}, last {number(last)} at {end:,}"


def _paint_loss(figure: Figure, axes: Axes, loss: LossCurve) -> None:
    figure.set_size_inches(7.6, 4.1)
    _loss_axes(axes, plain(loss.axis))
    finite: list[float] = []
    broken: list[int] = []
    for label, curve, colour, marker in (
        ("training loss", loss.train, BLUE, "o"),
        ("validation loss", loss.val, ORANGE, "s"),
    ):
        if curve is None:
            continue
        is_marked = len(curve.values) <= MARKED_POINTS or curve is loss.val
        look = {"label": label, "marker": marker if is_marked else None}
        _series(axes, curve.iterations, curve.values, colour, **look)
        finite += [value for value in curve.values if is_finite(value)]
        points = zip(curve.iterations, curve.values, strict=True)
        broken += [iteration for iteration, value in points if not is_finite(value)]
    dashes = ((4, 3), (1, 2), (8, 3), (4, 2, 1, 2))
    for floor, dash in zip(loss.floors, dashes, strict=False):
        label = f"{plain(floor.label, 34)}: {number(floor.value)}"
        axes.axhline(floor.value, color=GREY, linewidth=0.9, linestyle=(0, dash), label=label)
    _loss_scale(axes, [*finite, *(floor.value for floor in loss.floors)], finite)
    _edge_marks(axes, broken, 0.97, "x", "NaN or infinite")
    if loss.onset is not None:
        label = f"goes wrong at {loss.onset:,}"
        axes.axvline(loss.onset, color=RED, linewidth=1.2, linestyle=":", label=label)


def _loss_scale(axes: Axes, levels: Sequence[float], losses: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator

    low, high = min(levels, default=0.0), max(levels, default=1.0)
    if low > 0 and losses and max(losses) > LOGARITHMIC_FROM * min(losses):
        axes.set_yscale("log")
        axes.set_ylabel("loss (nats a token), logarithmic")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        axes.minorticks_off()
    elif low <= 0.35 * high:
        # Far from zero, starting there would flatten the curve.
        axes.set_ylim(bottom=min(0.0, low))


# The size of an update, by layer and module, or by module and checkpoint.


def _drift_caption(drift: DriftByLayer) -> str:
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


def _paint_drift(figure: Figure, axes: Axes, drift: DriftByLayer) -> None:
    _heat_map(figure, axes, drift)
    width, height = 3.2 + 0.75 * len(drift.columns), 1.9 + 0.24 * max(4, len(drift.rows))
    figure.set_size_inches(min(width, MAX_INCHES), min(height, MAX_INCHES))
    if len(drift.columns) > 3:
        axes.tick_params(axis="x", labelrotation=35)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")


def _checkpoints_caption(saved: CheckpointSizes) -> str:
    """From the smallest to the largest, and how many are broken."""
    sizes = [value for row in saved.values for value in row if is_finite(value)]
    text = f"Size of the update ({saved.quantity}) at {len(saved.columns)} checkpoints"
    if sizes:
        text += f", from {number(min(sizes))} to {number(max(sizes))}"
    condemned = zip(saved.columns, saved.broken, strict=True)
    broken = [column for column, is_broken in condemned if is_broken]
    text += f"; {len(broken)} are broken, the first {broken[0]}" if broken else "; none is broken"
    return sentence(text)


def _paint_checkpoints(figure: Figure, axes: Axes, saved: CheckpointSizes) -> None:
    import numpy as np

    values = _heat_map(figure, axes, saved)
    width, height = 3.6 + 0.34 * len(saved.columns), 2.0 + 0.17 * max(6, len(saved.rows))
    figure.set_size_inches(min(width, MAX_INCHES), min(height, MAX_INCHES))
    for cells, marker, colour, label in (
        (np.argwhere(~np.isfinite(values)), "x", RED, "not finite"),
        (np.argwhere(values == 0), ".", GREY, "no update"),
    ):
        if len(cells):
            axes.scatter(cells[:, 1], cells[:, 0], s=16, c=colour, marker=marker, label=label)
    broken = [column for column, is_broken in enumerate(saved.broken) if is_broken]
    _edge_marks(axes, broken, 1.03, "v", "broken checkpoint")
    axes.set_title(PICTURES["checkpoints"].title, pad=14)
    axes.set_xlabel("checkpoint")


def _heat_map(figure: Figure, axes: Axes, shown: DriftByLayer | CheckpointSizes) -> Any:
    """Colours for what is finite and above zero; returns the values as an array (rows, columns)."""
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    rows, columns = shown.rows, shown.columns
    values = np.array(shown.values, dtype=float).reshape(len(rows), len(columns))
    sizes = np.ma.masked_where(~(np.isfinite(values) & (values > 0)), values)
    low, high = (sizes.min(), sizes.max()) if sizes.count() else (0.0, 1.0)
    is_wide = high > LOGARITHMIC_COLOURS_FROM * low > 0
    scale = LogNorm(low, high) if is_wide else Normalize(0.0, high)
    image = axes.imshow(sizes, aspect="auto", norm=scale, interpolation="nearest")
    axes.set_facecolor(LIGHT)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7)
    for axis, names, most in (
        (axes.xaxis, columns, MAX_COLUMN_LABELS),
        (axes.yaxis, rows, MAX_ROW_LABELS),
    ):
        step = max(1, math.ceil(len(names) / most))
        axis.set_ticks(range(0, len(names), step), [plain(name, 40) for name in names[::step]])
    if isinstance(shown, DriftByLayer) and values.size <= MAX_NUMBERED_CELLS:
        for (row, column), value in np.ndenumerate(values):
            if is_finite(float(value)):
                is_light = value <= 0 or scale(value) > 0.55
                colour = "#1a1a1a" if is_light else "#ffffff"
                text = f"{value:,.0f}" if 100 <= value < 1e5 else f"{value:.2g}"
                axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(plain(shown.quantity, 60))
    bar.outline.set_visible(False)
    return values


# The most frequent tokens in the outputs.


def _tokens_caption(shares: TokenShares) -> str:
    """The most frequent token's share."""
    if not shares.tokens:
        return "No token was generated."
    text = (
        f"Share of each token in the outputs to {shares.prompts:,} prompts: "
        f"{shares.tokens[0]!r} makes up {shares.tuned[0]:.0%} of the tuned model's"
    )
    if shares.base is not None:
        text += f" and {shares.base[0]:.0%} of the base model's"
    return sentence(text)


def _paint_tokens(figure: Figure, axes: Axes, shares: TokenShares) -> None:
    from matplotlib.ticker import PercentFormatter

    tokens = shares.tokens[:MAX_TOKENS_SHOWN]
    figure.set_size_inches(6.4, 1.7 + 0.3 * max(2, len(tokens)))
    models = [("tuned model", shares.tuned, ORANGE, "")]
    if shares.base is not None:
        models.append(("base model", shares.base, BLUE, "////"))
    height = 0.76 / len(models)
    for number_of_model, (label, values, colour, hatch) in enumerate(models):
        shift = (number_of_model - (len(models) - 1) / 2) * height
        places = [place + shift for place in range(len(tokens))]
        bars = axes.barh(places, values[: len(tokens)], height, color=colour, label=label)
        for patch in bars:
            patch.set(hatch=hatch, edgecolor="white", linewidth=0)
        axes.bar_label(bars, fmt=lambda share: f"{share:.0%}", padding=3, fontsize=7)
    names = [_token_text(token, 20) for token in tokens]
    axes.set_yticks(range(len(tokens)), names, family=MONOSPACED)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max([0.01, *shares.tuned, *(shares.base or ())]))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of all tokens in the outputs")


# One training row as the loss sees it.


def _labels_caption(labels: LabelStrip) -> str:
    """How many tokens of each region are targets."""
    targets = [token.region for token in labels.tokens if token.target]
    counts = {region: targets.count(region) for region in dict.fromkeys(targets)}
    listed = ", ".join(f"{count:,} {region}" for region, count in counts.items()) or "none"
    return sentence(
        f"Row {labels.row:,} of {labels.split} as the loss sees it: "
        f"{len(targets):,} of {len(labels.tokens):,} tokens are targets ({listed})"
    )


def _paint_labels(figure: Figure, axes: Axes, labels: LabelStrip) -> None:
    tokens = [
        (_token_text(token.text, 14), _REGION_COLOURS[token.region], token.target)
        for token in labels.tokens
    ]
    if len(tokens) > MAX_STRIP_TOKENS:
        half = MAX_STRIP_TOKENS // 2
        gap = f"… {len(tokens) - 2 * half:,} more …"
        tokens = [*tokens[:half], (gap, "white", False), *tokens[-half:]]
    line, column = 0, 0.0
    for text, colour, is_target in tokens:
        width = len(text.replace("\\$", "$")) + 2.2
        if column + width > STRIP_COLUMNS:
            line, column = line + 1, 0.0
        frame = {
            "boxstyle": "square,pad=0.35",
            "facecolor": colour if is_target else (colour, 0.45),
            "edgecolor": "black" if is_target else "none",
        }
        look: dict[str, Any] = {
            "fontsize": 7.5,
            "family": MONOSPACED,
            "va": "center",
            "bbox": frame,
        }
        axes.text(column + 0.6, line + 0.5, text, **look)
        column += width
    figure.set_size_inches(8.2, 1.1 + 0.27 * (line + 1))
    axes.set_xlim(0, STRIP_COLUMNS)
    axes.set_ylim(line + 1, 0)
    axes.set_axis_off()
    box: dict[str, Any] = {"s": 60, "marker": "s"}
    for region in dict.fromkeys(token.region for token in labels.tokens):
        axes.scatter([], [], color=_REGION_COLOURS[region], label=region, **box)
    axes.scatter([], [], color="white", edgecolor="black", label="trained on", **box)


# What a few updates at each rate do to the loss.


def _rates_caption(curve: RateCurve) -> str:
    """The rates, and which is the largest that learns."""
    text = (
        f"The loss on fixed rows after {curve.updates} updates at each of {len(curve.rates)} "
        f"rates, {curve.rates[0]:.2g} to {curve.rates[-1]:.2g}; {curve.untouched:.2f} before any"
    )
    if curve.largest is not None and curve.advised is not None:
        text += (
            f". The largest that learns is {curve.largest:.2g}, the one to use {curve.advised:.2g}"
        )
    return f"{text}."


def _paint_rates(figure: Figure, axes: Axes, curve: RateCurve) -> None:
    figure.set_size_inches(6.4, 3.2)
    # A loss that rose a hundredfold would press the rest into one line.
    top = curve.untouched * 1.5
    losses = [min(loss, top) if is_finite(loss) else math.nan for loss in curve.losses]
    noise = [one if is_finite(one) else 0.0 for one in curve.noise]
    look: dict[str, Any] = {"color": BLUE, "marker": "o", "markersize": 4}
    axes.errorbar(curve.rates, losses, yerr=noise, label="after the updates", **look)
    lost = [rate for rate, loss in zip(curve.rates, losses, strict=True) if math.isnan(loss)]
    _edge_marks(axes, lost, 0.97, "x", "lost")
    axes.axhline(curve.untouched, color=GREY, linestyle=":", label="before any update")
    for rate, label, line in (
        (curve.configured, "configured", "--"),
        (curve.advised, "advised", "-"),
    ):
        if rate is not None and rate > 0:
            axes.axvline(rate, color=ORANGE, linestyle=line, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss (nats a token)")


# What `reproduce` tried, which is no check's exhibit.


def _paint_reruns(figure: Figure, axes: Axes, reruns: Sequence[Rerun]) -> None:
    """One colour and line a kind of rerun, one label a condition."""
    starts = [rerun.curve.values[0] for rerun in reruns if rerun.curve.values]
    first = [loss for loss in starts if is_finite(loss) and 0 < loss < _HIGHEST]
    top = _TALLEST * max(first, default=_HIGHEST)
    labelled: set[str] = set()
    for rerun in reruns:
        colour, line = _RERUN_LOOKS[rerun.experiment]
        label = _PROBES if rerun.experiment == "probe" else plain(rerun.label, 44)
        _series(
            axes,
            rerun.curve.iterations,
            [min(loss, 2 * top) if is_finite(loss) else math.nan for loss in rerun.curve.values],
            colour,
            linestyle=line,
            linewidth=1.3,
            zorder=1 if rerun.experiment == "probe" else 2,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    figure.set_size_inches(7.6, 3.9)
    _loss_axes(axes, "iteration")
    axes.set_ylim(0.0, min(axes.get_ylim()[1], top))


#: Every picture, by the name of the figure.
PICTURES: Mapping[str, Picture] = {
    "loss": Picture("The loss over the run", _loss_caption, _paint_loss),
    "drift": Picture("The size of the update by layer and module", _drift_caption, _paint_drift),
    "checkpoints": Picture(
        "The size of the update at each checkpoint", _checkpoints_caption, _paint_checkpoints
    ),
    "tokens": Picture("The most frequent tokens in the outputs", _tokens_caption, _paint_tokens),
    "labels": Picture("One training row and its labels", _labels_caption, _paint_labels),
    "rates": Picture(
        "What a few updates at each rate do to the loss", _rates_caption, _paint_rates
    ),
    "experiments": Picture("The loss of every rerun", lambda _: "", _paint_reruns),
}
