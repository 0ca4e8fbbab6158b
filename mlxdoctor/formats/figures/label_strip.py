"""The picture of a training row as the loss sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlxdoctor.exhibits import LabelStrip, LabelToken
from mlxdoctor.formats.figures.canvas import GREEN, RED, figure_and_axes, plain, token_text
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.formats.summary import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Tokens of the label strip: its beginning and its end are shown.
MAX_STRIP_TOKENS = 120
STRIP_COLUMNS = 92
_REGION_COLOURS = {
    "prompt": "#b9b9b9",
    "answer": "#56B4E9",
    "end": GREEN,
    "pad": RED,
    "other": "#CC79A7",
}
#: What stands for the tokens in the middle that are not shown.
_LEFT_OUT = LabelToken("…", "other", target=False)


def caption(labels: LabelStrip) -> str:
    """How many tokens of each region are targets."""
    targets = [one for one in labels.tokens if one.target]
    counts = {
        name: sum(one.region == name for one in targets)
        for name in dict.fromkeys(one.region for one in targets)
    }
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
    return sentence(
        f"Row {labels.row:,} of {labels.split} as the loss sees it: "
        f"{len(targets):,} of {len(labels.tokens):,} tokens are targets ({listed})"
    )


def draw(labels: LabelStrip) -> Figure:
    from matplotlib.patches import Patch

    lines, left_out = _strip_lines(labels.tokens)
    figure, axes = figure_and_axes(8.2, 1.35 + 0.36 * max(1, len(lines)))
    for line, cells in enumerate(lines):
        for start, width, text, token in cells:
            _cell(axes, (start, line), width, text, token)
    axes.set_xlim(0, STRIP_COLUMNS)
    axes.set_ylim(len(lines), 0)
    axes.set_axis_off()
    title = f"Row {labels.row:,} of {plain(labels.split)}, as the loss sees it"
    if left_out:
        title += f" ({left_out:,} tokens in the middle left out)"
    axes.set_title(title)
    regions = list(dict.fromkeys(one.region for one in labels.tokens))
    handles = [Patch(facecolor=_REGION_COLOURS[one], label=one) for one in regions]
    handles.append(Patch(facecolor="white", edgecolor="black", linewidth=1.4, label="trained on"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _strip_lines(
    tokens: Sequence[LabelToken],
) -> tuple[list[list[tuple[float, float, str, LabelToken]]], int]:
    left_out = max(0, len(tokens) - MAX_STRIP_TOKENS)
    half = MAX_STRIP_TOKENS // 2
    shown = [*tokens[:half], None, *tokens[-half:]] if left_out else list(tokens)
    lines: list[list[tuple[float, float, str, LabelToken]]] = [[]]
    at = 0.0
    for token in shown:
        text = "…" if token is None else token_text(token.text, 14)
        width = 1.1 * max(1, len(text.replace("\\$", "$"))) + 0.9
        if at + width > STRIP_COLUMNS:
            lines.append([])
            at = 0.0
        lines[-1].append((at, width, text, token or _LEFT_OUT))
        at += width
    return lines, left_out


def _cell(axes: Axes, place: tuple[float, int], width: float, text: str, token: LabelToken) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (place[0] + 0.15, place[1] + 0.1),
            width - 0.3,
            0.78,
            facecolor=_REGION_COLOURS[token.region],
            edgecolor="black" if token.target else "none",
            linewidth=1.4 if token.target else 0,
            alpha=1.0 if token.target else 0.55,
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
        color="black" if token.target else "#444444",
        fontweight="bold" if token.target else "normal",
    )


PICTURE = Picture(LabelStrip, "One training row and its labels", caption, draw)
