"""What `inspect` says of a file of weights: figures for programs, and a page for people."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mlxdoctor.formats import escape

#: One row of a table, as the JSON has it; figures that are not finite are None.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of a table: its header, the key of its cells, how they are shown and aligned."""

    header: str
    key: str
    show: Callable[[Any], object] = lambda value: "" if value is None else value
    align: Literal["<", ">"] = ">"


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
        summary = "\n".join(map(clean, self.summary))
        if not self.rows:
            return summary
        columns = []
        for column in self.columns:
            texts = [column.header]
            texts += [clean(str(column.show(row[column.key]))) for row in self.rows]
            place = f"{column.align}{max(map(len, texts))}"
            header, *cells = (f"{text:{place}}" for text in texts)
            columns.append([header, f"{':' if is_markdown else '':-{place}}", *cells])
        lines = [(" | " if is_markdown else "  ").join(line) for line in zip(*columns, strict=True)]
        lines = [f"| {line} |" if is_markdown else line.rstrip() for line in lines]
        return "\n".join([summary, "", *lines])


def figure(value: float | None) -> str:
    """A figure in a table's cell, to four digits; a dash where there is none."""
    return "–" if value is None else f"{value:.4g}"
