"""The picture of a model's outputs: their most frequent tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxdoctor.exhibits import TokenShares
from mlxdoctor.formats.figures.canvas import BLUE, ORANGE, figure_and_axes, token_text
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.formats.summary import sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS_SHOWN = 12


def caption(shares: TokenShares) -> str:
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


def draw(shares: TokenShares) -> Figure:
    shown = shares.tokens[:MAX_TOKENS_SHOWN]
    figure, axes = figure_and_axes(6.4, 1.7 + 0.3 * max(2, len(shown)))
    places = list(range(len(shown)))
    base = shares.base
    height = 0.6 if base is None else 0.38
    series = [("tuned", shares.tuned, ORANGE, 0.0 if base is None else -height / 2)]
    if base is not None:
        series.append(("base", base, BLUE, height / 2))
    largest = max([0.01, *shares.tuned, *(base or ())])
    for key, all_values, colour, shift in series:
        values = all_values[: len(shown)]
        axes.barh(
            [place + shift for place in places],
            values,
            height=height,
            color=colour,
            label=f"{key} model",
            hatch="" if key == "tuned" else "////",
            edgecolor="white",
            linewidth=0,
        )
        for place, share in zip(places, values, strict=True):
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
    axes.set_title(f"Most frequent tokens, {shares.prompts:,} prompts")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


PICTURE = Picture(TokenShares, "The most frequent tokens in the outputs", caption, draw)
