"""Tables that blanks hold together: a line of names, and lines of numbers below it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlxdoctor.evidence.logs.lines import is_count, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, snake_case, unique
from mlxdoctor.evidence.logs.shapes import Nature

_GAP = re.compile(r"\s{2,}|\t")
#: What a row has where there is no figure.
_EMPTY = frozenset(("-", "--", "–", "n/a", "N/A", "None", ""))
#: Cells of a row that is looked at.
MAX_CELLS = 32


class ColumnTable(LineFormat):
    """`step   loss    lr` and `  10   2.5  1e-5` below it."""

    name = "columns"
    priority = 75
    understood = "tables"
    example = "  step   loss      lr\n    10    2.5   1e-05\n    20   2.25   1e-05\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._columns: tuple[str | None, ...] = ()
        self._step = ("step", 0)

    def read(self, number: int, line: str) -> bool:
        """Whether the line is the head of a table of metrics, or a row of it."""
        if self._columns and (row := self._row(line)) is not None:
            name, place = self._step
            counted = row[place]
            if counted is None or not is_count(counted):
                return False
            metrics = {
                column: value
                for column, value in zip(self._columns, row, strict=True)
                if column is not None and value is not None
            }
            if metrics:
                nature = Nature.EPOCH if name == "epoch" else Nature.PLAIN
                self.add(number, (name, counted), metrics, nature=nature)
            return True
        return "oss" in line and self._begins(line)

    def _begins(self, line: str) -> bool:
        cells = _GAP.split(line.strip())
        named = [snake_case(cell) for cell in cells]
        if not 2 <= len(cells) <= MAX_CELLS or any(to_number(cell) is not None for cell in cells):
            return False
        step = next((name for name in (*STEPS, "epoch") if name in named), None)
        columns = unique(
            [None if name in (*STEPS, "epoch") else canonical(name) for name in named], cells
        )
        if step is None or not is_report(filter(None, columns)) or ":" in line or "=" in line:
            return False
        self._columns, self._step = columns, (step, named.index(step))
        return True

    def _row(self, line: str) -> Sequence[float | None] | None:
        cells = line.split()
        # A data frame counts its rows in front of them.
        if len(cells) == len(self._columns) + 1 and cells[0].isdigit():
            cells = cells[1:]
        if len(cells) != len(self._columns):
            return None
        values = [to_number(cell) for cell in cells]
        known = all(
            value is not None or cell in _EMPTY for value, cell in zip(values, cells, strict=True)
        )
        return values if known else None
