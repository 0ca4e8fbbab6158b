"""The pictures of a report, as small PNG files that are the same on every machine.

Every series differs by its colour and also by its marker, hatching or label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats.figures.canvas import (
    BLUE,
    GREEN,
    LIGHT,
    ORANGE,
    RED,
    STYLE,
    figure_and_axes,
    plain,
    png,
    token_text,
)
from mlxdoctor.formats.figures.checkpoint_sizes import draw_checkpoints
from mlxdoctor.formats.figures.experiment_curves import draw_experiments
from mlxdoctor.formats.figures.loss_curve import draw_loss
from mlxdoctor.formats.summary import is_finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def draw(
    figures: Mapping[str, Any], experiments: Sequence[Mapping[str, Any]] = ()
) -> dict[str, bytes]:
    """The figures that have data, as PNG, by name.

    Args:
        figures: as `model.Figures` describes them.
        experiments: reruns with a curve, as the report lists them.
    """
    import matplotlib as mpl

    drawers: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
        "loss": draw_loss,
        "drift": _drift,
        "checkpoints": draw_checkpoints,
        "tokens": _tokens,
        "labels": _labels,
    }
    # A user's matplotlibrc must not change what a report looks like.
    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE}
    with mpl.rc_context(settings):
        drawn = {
            name: png(draw_one(figures[name]))
            for name, draw_one in drawers.items()
            if figures.get(name) is not None
        }
        if any(one.get("curve") for one in experiments):
            drawn["experiments"] = png(draw_experiments(experiments))
    return drawn


def _drift(drift: Mapping[str, Any]) -> Figure:
    import numpy as np
    from matplotlib.colors import LogNorm

    rows, columns = list(drift["rows"]), list(drift["columns"])
    values = np.array(drift["values"], dtype=float).reshape(len(rows), len(columns))
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
    bar.set_label(plain(drift["quantity"], 60))
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
    figure, axes = figure_and_axes(6.4, 1.7 + 0.3 * max(2, len(shown)))
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
    axes.set_yticks(places, [token_text(one, 20) for one in shown])
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
    figure, axes = figure_and_axes(8.2, 1.35 + 0.36 * max(1, len(lines)))
    for line, cells in enumerate(lines):
        for start, width, text, token in cells:
            _cell(axes, (start, line), width, text, token)
    axes.set_xlim(0, STRIP_COLUMNS)
    axes.set_ylim(len(lines), 0)
    axes.set_axis_off()
    title = f"Row {labels['row']:,} of {plain(labels['split'])}, as the loss sees it"
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
        text = "…" if token is None else token_text(token["text"], 14)
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
