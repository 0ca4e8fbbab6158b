"""The pictures of a report, as small PNG files that are the same on every machine.

Colours are Okabe and Ito's, which people with any colour vision tell apart;
every series also differs by its marker, line or label.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxdoctor.report import escape
from mlxdoctor.report.summary import is_finite, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, LIGHT = "#6b6b6b", "#e4e4e4"
DOTS_PER_INCH = 110
#: A loss this many times its smallest value is drawn on a logarithmic axis.
LOGARITHMIC_FROM = 8.0
#: Points of a curve that are drawn; longer curves are thinned, keeping their extremes.
MAX_POINTS = 600
MAX_TOKENS_SHOWN = 12
#: Tokens of the label strip: its beginning and its end are shown.
MAX_STRIP_TOKENS = 120
STRIP_COLUMNS = 92
MAX_HEAT_ROWS = 80
_REGION_COLOURS = {
    "prompt": "#b9b9b9",
    "answer": "#56B4E9",
    "end": GREEN,
    "pad": RED,
    "other": "#CC79A7",
}


def draw(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """The figures that have data, as PNG, by name.

    Args:
        figures: as `model.Figures` describes them.
    """
    import matplotlib as mpl

    drawers: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
        "loss": _loss,
        "drift": _drift,
        "tokens": _tokens,
        "labels": _labels,
    }
    # A user's matplotlibrc must not change what a report looks like.
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **_STYLE}
    with mpl.rc_context(settings):
        return {
            name: _png(draw_one(figures[name]))
            for name, draw_one in drawers.items()
            if figures[name] is not None
        }


_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "font.size": 9,
    "legend.frameon": False,
}


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # Without `Software`, the picture does not change with matplotlib's version number.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _plain(text: str, limit: int = 24) -> str:
    """`text` as matplotlib draws it literally, with glyphs that its own font has."""
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    shown = escape.visible(text)
    known = "".join(one if font.get_char_index(ord(one)) else f"\\u{ord(one):04x}" for one in shown)
    if len(known) > limit:
        known = known[: limit - 1] + "…"
    # An even number of dollar signs would be set as a formula.
    return known.replace("$", r"\$")


def _token_text(text: str, limit: int) -> str:
    """A token with its blanks to be seen."""
    return _plain(text.replace(" ", "·"), limit) or "(empty)"


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


def _loss(loss: Mapping[str, Any]) -> Figure:
    figure, axes = _figure(7.6, 3.9)
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
    axes.set_xlabel(_plain(loss["axis"]))
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
            f"{_plain(floor['label'], 34)}\n{number(floor['value'])}",
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


def _drift(drift: Mapping[str, Any]) -> Figure:
    import numpy as np
    from matplotlib.colors import LogNorm

    rows, columns = list(drift["rows"]), list(drift["columns"])
    values = np.array(drift["values"], dtype=float).reshape(len(rows), len(columns))
    if len(rows) > MAX_HEAT_ROWS:
        chosen = np.linspace(0, len(rows) - 1, MAX_HEAT_ROWS).astype(int)
        rows, values = [rows[index] for index in chosen], values[chosen]
    figure, axes = _figure(
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
    axes.set_xticks(range(len(columns)), [_plain(one, 30) for one in columns])
    axes.tick_params(axis="x", labelrotation=35 if len(columns) > 3 else 0)
    for label in axes.get_xticklabels():
        label.set_horizontalalignment("right" if len(columns) > 3 else "center")
    step = math.ceil(len(rows) / 32)
    axes.set_yticks(range(0, len(rows), step), [_plain(one) for one in rows[::step]])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if values.size <= 96:
        _heat_numbers(axes, values, image, is_log=wide)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(_plain(drift["quantity"], 60))
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


def _tokens(tokens: Mapping[str, Any]) -> Figure:
    shown = list(tokens["tokens"])[:MAX_TOKENS_SHOWN]
    figure, axes = _figure(6.4, 1.7 + 0.3 * max(2, len(shown)))
    places = list(range(len(shown)))
    both = tokens["base"] is not None
    height = 0.38 if both else 0.6
    series = [("tuned", ORANGE, -height / 2 if both else 0.0)]
    if both:
        series.append(("base", BLUE, height / 2))
    largest = max([0.01, *tokens["tuned"], *(tokens["base"] or [])])
    for key, colour, shift in series:
        shares = list(tokens[key])[: len(shown)]
        axes.barh(
            [place + shift for place in places],
            shares,
            height=height,
            color=colour,
            label=f"{key} model",
            hatch="" if key == "tuned" else "////",
            edgecolor="white",
            linewidth=0,
        )
        for place, share in zip(places, shares, strict=True):
            axes.annotate(
                f"{share:.0%}" if share >= 0.01 or share == 0 else "<1%",
                (share, place + shift),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color="#333333",
            )
    axes.set_yticks(places, [_token_text(one, 20) for one in shown])
    for label in axes.get_yticklabels():
        label.set_fontfamily("DejaVu Sans Mono")
    axes.invert_yaxis()
    axes.set_xlim(0, largest * 1.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share of all tokens in the outputs")
    axes.set_title(f"Most frequent tokens, {tokens['prompts']:,} prompts")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _labels(labels: Mapping[str, Any]) -> Figure:
    from matplotlib.patches import Patch

    lines, left_out = _strip_lines(labels["tokens"])
    figure, axes = _figure(8.2, 1.35 + 0.36 * max(1, len(lines)))
    for line, cells in enumerate(lines):
        for start, width, text, token in cells:
            _cell(axes, (start, line), width, text, token)
    axes.set_xlim(0, STRIP_COLUMNS)
    axes.set_ylim(len(lines), 0)
    axes.set_axis_off()
    title = f"Row {labels['row']:,} of {_plain(labels['split'])}, as the loss sees it"
    if left_out:
        title += f" ({left_out:,} tokens in the middle left out)"
    axes.set_title(title)
    regions = list(dict.fromkeys(one["region"] for one in labels["tokens"]))
    handles = [Patch(facecolor=_REGION_COLOURS[one], label=one) for one in regions]
    handles.append(Patch(facecolor="white", edgecolor="black", linewidth=1.4, label="trained on"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _strip_lines(
    tokens: Sequence[Mapping[str, Any]],
) -> tuple[list[list[tuple[float, float, str, Mapping[str, Any]]]], int]:
    left_out = max(0, len(tokens) - MAX_STRIP_TOKENS)
    half = MAX_STRIP_TOKENS // 2
    shown = [*tokens[:half], None, *tokens[-half:]] if left_out else list(tokens)
    lines: list[list[tuple[float, float, str, Mapping[str, Any]]]] = [[]]
    at = 0.0
    for token in shown:
        text = "…" if token is None else _token_text(token["text"], 14)
        width = 1.1 * max(1, len(text.replace("\\$", "$"))) + 0.9
        if at + width > STRIP_COLUMNS:
            lines.append([])
            at = 0.0
        lines[-1].append((at, width, text, token or {"region": "other", "target": False}))
        at += width
    return lines, left_out


def _cell(
    axes: Axes, place: tuple[float, int], width: float, text: str, token: Mapping[str, Any]
) -> None:
    from matplotlib.patches import Rectangle

    is_target = token["target"]
    axes.add_patch(
        Rectangle(
            (place[0] + 0.15, place[1] + 0.1),
            width - 0.3,
            0.78,
            facecolor=_REGION_COLOURS[token["region"]],
            edgecolor="black" if is_target else "none",
            linewidth=1.4 if is_target else 0,
            alpha=1.0 if is_target else 0.55,
        )
    )
    axes.text(
        place[0] + width / 2,
        place[1] + 0.5,
        text,
        ha="center",
        va="center",
        fontsize=7.5,
        family="DejaVu Sans Mono",
        color="black" if is_target else "#444444",
        fontweight="bold" if is_target else "normal",
    )
