"""What `inspect` says of a file of weights: figures for programs, and a page for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tabulate import tabulate

from mlxdoctor.formats import escape

#: One row of a table, as the JSON has it; figures that are not finite are None.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table: its header, the key of its cells, how they are shown and aligned."""

    header: str
    key: str
    show: Callable[[Any], object] = lambda value: "" if value is None else value
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Inspection:
    """A file of weights in figures: an object in a JSON list `kind`, and lines above its table."""

    kind: Literal["adapters", "models"]
    figures: Mapping[str, Any]
    summary: Sequence[str]
    rows: Sequence[Row]
    columns: Sequence[Column]

    def page(self, *, is_markdown: bool) -> str:
        """Lines for a terminal, or Markdown; what an artifact wrote can do no harm in either."""
        clean = escape.markdown if is_markdown else escape.terminal
        table = tabulate(
            [[clean(str(one.show(row[one.key]))) for one in self.columns] for row in self.rows],
            [column.header for column in self.columns],
            tablefmt="pipe" if is_markdown else "simple",
            colalign=[column.align for column in self.columns],
            disable_numparse=True,
        )
        return "\n".join([*map(clean, self.summary), *(["", table] if self.rows else [])])


def figure(value: float | None) -> str:
    """A figure in a table's cell, to four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"
