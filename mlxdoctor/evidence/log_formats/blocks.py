"""Reports over several lines (GRPO), and the values a progress bar shows."""

from __future__ import annotations

import re

from mlxdoctor.evidence.log_formats.names import canonical, is_report, snake_case
from mlxdoctor.evidence.log_formats.segments import Rows
from mlxdoctor.evidence.log_formats.series import Notes
from mlxdoctor.evidence.log_formats.text import NUMBER, to_number

_OPEN = re.compile(r"^\s*(Iter|Iteration|Step)\s+(\d[\d,]*)\s*(?::\s*)?$")
_ENTRY = re.compile(r"^\s*(?:•\s*)?([A-Za-z][\w ./-]{0,60}?)\s*:\s*(.*)$")
_PART = re.compile(rf"(?:([\wμµσ]{{1,60}})\s{{0,8}}=\s{{0,8}})?({NUMBER})\s*(%|it/s|tok/s|GB)?")
_BAR = re.compile(r"(?<![\d,])(\d[\d,]{0,20})/(\d[\d,]{0,20})\s{0,8}\[([^\]]*)\]?")
_POSTFIX = re.compile(rf"([A-Za-z][\w /-]{{0,60}}?)\s{{0,8}}=\s{{0,8}}({NUMBER})")

#: Lines that a block may have; after them it is taken to be over.
MAX_BLOCK = 80


class BlockReader:
    """Reads `Iter 10:` followed by `Name: value` lines, one line at a time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._step: tuple[str, float] | None = None
        self._line = 0
        self._row: dict[str, float] = {}
        self._count = 0
        self.read_rows = 0

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to a block."""
        if match := _OPEN.match(line):
            self.flush()
            self._step = (match.group(1).lower(), float(match.group(2).replace(",", "")))
            self._line = number
            return True
        if self._step is None:
            return False
        self._count += 1
        text = line.strip()
        if self._count > MAX_BLOCK or (self._row and text and not text.strip("=")):
            self.flush()
            return False
        entry = _ENTRY.match(line)
        if entry is None:
            return not text.strip("-=")
        label, rest = entry.groups()
        # `512 (limit: 512)`: the setting is not a measurement.
        for part in _PART.finditer(rest.split("(")[0]):
            name, value = self._name(label, part), to_number(part.group(2))
            if value is not None:
                self._row.setdefault(name, value)
        return True

    @staticmethod
    def _name(label: str, part: re.Match[str]) -> str:
        key, _, unit = part.groups()
        if unit in ("it/s", "tok/s"):
            return canonical(unit)
        return canonical(f"{label} {snake_case(key)}" if key else label)

    def flush(self) -> None:
        """End the block that is open."""
        if self._step is not None and is_report(self._row):
            self._rows.add(self._line, self._step, self._row)
            self.read_rows += 1
        self._step, self._row, self._count = None, {}, 0


class ProgressReader:
    """Reads `10/100 [00:32<.., loss=3.4]`: used where nothing else reports a loss.

    A bar is redrawn more often than its values change: of the redraws at one step the
    last counts, and a step that repeats the values of the one before is not a report.
    """

    def __init__(self, rows: Rows, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._before: dict[str, float] = {}
        self._held: tuple[int, float, int, dict[str, float]] | None = None
        self.read_rows = 0

    def read(self, number: int, line: str) -> bool:
        """Whether the line holds a progress bar with a loss."""
        found = False
        for bar in _BAR.finditer(line):
            pairs = _POSTFIX.findall(bar.group(3))
            row = {canonical(name.split(",")[-1]): to_number(value) for name, value in pairs}
            values = {name: value for name, value in row.items() if value is not None}
            if not is_report(values):
                continue
            found = True
            step, total = (int(bar.group(i).replace(",", "")) for i in (1, 2))
            if self._held is not None and self._held[1] != step:
                self.flush()
            self._held = (number, step, total, values)
        return found

    def flush(self) -> None:
        """Keep the last redraw of the step before."""
        if self._held is None:
            return
        number, step, total, row = self._held
        self._held = None
        if row == self._before:
            return
        self._before = row
        shape = self._rows.shape((*row, None), len(row), "step", fallback=True)
        shape.values.append((*row.values(), step))
        shape.lines.append(number)
        self.read_rows += 1
        if not self._notes.announced or self._notes.announced[-1][1] != total:
            self._notes.announced.append((number, total))
