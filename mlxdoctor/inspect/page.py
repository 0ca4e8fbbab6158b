"""What every table of `inspect` is made of: columns, cells and the order of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from mlxdoctor.formats import escape

Row = TypeVar("Row")

#: `--sort` -> the attribute of a row; figures sort from the largest down.
SORTS = {
    "layer": "layer",
    "update": "update_norm",
    "spectral": "spectral_norm",
    "stable-rank": "stable_rank",
    "relative": "relative",
}


@dataclass(frozen=True)
class Column:
    """One column of a table: its header, its cells from the top, and the side they stand on."""

    header: str
    cells: Sequence[Any]
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Page:
    """Lines for a terminal, or Markdown; what an artifact wrote can do no harm in either."""

    is_markdown: bool

    @property
    def clean(self) -> Callable[[str], str]:
        """Makes text from an artifact harmless."""
        return escape.markdown if self.is_markdown else escape.terminal

    def table(self, columns: Sequence[Column]) -> str:
        """The columns side by side."""
        from tabulate import tabulate

        return tabulate(
            list(zip(*(one.cells for one in columns), strict=True)),
            [one.header for one in columns],
            tablefmt="pipe" if self.is_markdown else "simple",
            disable_numparse=True,
            colalign=[one.align for one in columns],
        )


def in_order(rows: Sequence[Row], sort: str) -> Sequence[Row]:
    """The rows as they are, by layer, or those with the largest figure first."""
    if sort == "layer":
        return rows

    def descending(row: Row) -> tuple[bool, float]:
        value = getattr(row, SORTS[sort])
        return value is None, -(value or 0.0)

    return sorted(rows, key=descending)


def figure(value: float | None) -> str:
    """A figure in a table's cell, to four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"


def share(value: float | None) -> str:
    """A share in a table's cell; from ten times on a factor, and a dash where there is none."""
    return "–" if value is None else f"{value:.0%}" if value < 10 else f"{value:.0f} x"


def layer_number(layer: int | None) -> int | str:
    """A layer in a table's cell; nothing outside the layers."""
    return "" if layer is None else layer
