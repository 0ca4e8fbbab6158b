"""What every picture of a report shares: colours, style, literal text, and the PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which people with any colour vision tell apart.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, LIGHT = "#6b6b6b", "#e4e4e4"
DOTS_PER_INCH = 110

STYLE = {
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


@contextmanager
def style(more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """What is drawn below looks the same whatever a user's matplotlibrc says."""
    import matplotlib as mpl

    settings: dict[Any, Any] = {**mpl.rcParamsDefault, **STYLE, **more}
    # Pictures have a canvas of their own; to ask for a backend imports pyplot, and looks for one.
    del settings["backend"]
    with mpl.rc_context(settings):
        yield


def figure_and_axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    # Without `Software`, the picture does not change with matplotlib's version number.
    # `savefig` would draw it twice, once to lay it out; drawing it lays it out anyway.
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def plain(text: str, limit: int = 24) -> str:
    """`text` as matplotlib draws it literally, with glyphs that its own font has."""
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    shown = escape.visible(text)
    known = "".join(one if font.get_char_index(ord(one)) else f"\\u{ord(one):04x}" for one in shown)
    if len(known) > limit:
        known = known[: limit - 1] + "…"
    # An even number of dollar signs would be set as a formula.
    return known.replace("$", r"\$")


def token_text(text: str, limit: int) -> str:
    """A token with its blanks to be seen."""
    return plain(text.replace(" ", "·"), limit) or "(empty)"
