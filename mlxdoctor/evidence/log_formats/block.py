"""Reports over several lines, as trainers of GRPO print them."""

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import canonical, is_report, snake_case
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

_OPEN = re.compile(r"^\s*(Iter|Iteration|Step)\s+(\d[\d,]*)\s*(?::\s*)?$")
_ENTRY = re.compile(r"^\s*(?:•\s*)?([A-Za-z][\w ./-]{0,60}?)\s*:\s*(.*)$")
#: The same in a box, and the lines around it.
_CELLS = re.compile(r"^\s*[│┃|]\s*([A-Za-z][\w ./()-]{0,60}?)\s*[│┃|]\s*([^│┃|]*)[│┃|]\s*$")
_DRAWN = "-=━─┏┳┓┡╇┩├┼┤└┴┘╭╮╰╯ "
#: The line around a box, and what counts the updates in it, best first.
_RULE = re.compile(r"\s*[-+=─━┌┐└┘]{20,}\s*")
_COUNTERS = ("total_timesteps", "timesteps", "iterations", "nupdates")
_PART = re.compile(rf"(?:([\wμµσ]{{1,60}})\s{{0,8}}=\s{{0,8}})?({NUMBER})\s*(%|it/s|tok/s|GB)?")

#: Lines that a block may have; after them it is taken to be over.
MAX_BLOCK = 80


class Block(LineFormat):
    """`Iter 10:`, and `Name: value` lines below it; or a box of such lines."""

    name = "blocks"
    priority = 65
    example = "Iter 10:\n  Loss: 2.5\n  Rewards: μ=0.5, σ=0.1\n====\nIter 20:\n  Loss: 2.25\n====\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_open = False
        self._step: tuple[str, float] | None = None
        self._line, self._ruled = 0, -1
        self._row: dict[str, float] = {}

    def read(self, number: int, line: str) -> bool:
        if match := _OPEN.match(line):
            self.finish()
            self._step = (match.group(1).lower(), float(match.group(2).replace(",", "")))
            self._is_open, self._line = True, number
            return True
        if not (self._is_open and self._step) and _RULE.fullmatch(line):
            self.finish()
            self._ruled = number
            return False
        cells = _CELLS.match(line) if number == self._ruled + 1 else None
        # A line of names is the head of a table.
        if cells is not None and (not cells[2].strip() or to_number(cells[2].strip()) is not None):
            self._is_open, self._line, self._step = True, number, None
        # A progress bar between the lines is another format's.
        if not self._is_open or "%|" in line:
            return False
        text = line.strip()
        if number - self._line > MAX_BLOCK or (self._row and text and not text.strip("=")):
            self.finish()
            return False
        entry = (_ENTRY.match(line) if self._step else None) or _CELLS.match(line)
        if entry is None and not self._step and text.strip(_DRAWN):
            # A box has nothing but cells.
            self.finish()
            return False
        if entry is None:
            return not text.strip(_DRAWN)
        label, rest = entry.groups()
        # `512 (limit: 512)`: the setting is not a measurement.
        for key, number_text, unit in _PART.findall(rest.split("(")[0]):
            if (value := to_number(number_text)) is not None:
                own = f"{label} {snake_case(key)}" if key else label
                self._row.setdefault(canonical(unit if unit.endswith("/s") else own), value)
        return True

    def finish(self) -> None:
        counted = next((self._row[name] for name in _COUNTERS if name in self._row), None)
        step = self._step or (None if counted is None else ("step", counted))
        # A box of settings has names like those of metrics, and counts nothing.
        if is_report(self._row) and step is not None:
            row = {name: value for name, value in self._row.items() if name not in _COUNTERS}
            self.add(self._line, step, row)
        self._is_open, self._row = False, {}
