"""The pictures of a report, as small PNG files that are the same on every machine.

Every series differs by its colour and also by its marker, hatching or label.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from mlxdoctor.confirmation import Rerun
from mlxdoctor.formats.figures.canvas import png, style
from mlxdoctor.formats.figures.experiment_curves import draw_reruns
from mlxdoctor.formats.figures.picture import Picture
from mlxdoctor.members import modules_of
from mlxdoctor.report import Report

#: The picture of what `reproduce` tried, which is no check's.
EXPERIMENTS = "experiments"


@cache
def pictures() -> Mapping[str, Picture]:
    """Every picture, by the name of the figure."""
    modules = modules_of("mlxdoctor.formats.figures")
    found = [module.PICTURE for module in modules if hasattr(module, "PICTURE")]
    return {one.shows.figure: one for one in found}


def path_of(name: str) -> str:
    """The file of a figure, relative to the report."""
    return f"figures/{name}.png"


def all_paths() -> list[str]:
    """The files of all figures that a report can have."""
    return [path_of(name) for name in (*pictures(), EXPERIMENTS)]


def captions(report: Report) -> dict[str, str]:
    """What each figure shows, in words with its figures, for those that have data."""
    return {
        name: pictures()[name].caption(shown)
        for name, shown in report.figures.items()
        if name in pictures()
    }


def draw(report: Report) -> dict[str, bytes]:
    """The figures that have data, as PNG, by name."""
    drawn = {
        name: _picture(name, shown) for name, shown in report.figures.items() if name in pictures()
    }
    if reruns := [one for one in report.experiments if isinstance(one, Rerun)]:
        with style():
            drawn[EXPERIMENTS] = png(draw_reruns(reruns))
    return drawn


def _picture(name: str, shown: Any) -> bytes:
    try:
        hash(shown)
    except TypeError:
        # Of another package's check, with a list in it.
        return drawn_once.__wrapped__(name, shown)
    return drawn_once(name, shown)


@lru_cache(maxsize=16)  # a report's formats have the same pictures
def drawn_once(name: str, shown: Any) -> bytes:
    """One figure, as PNG."""
    with style():
        return png(pictures()[name].draw(shown))
