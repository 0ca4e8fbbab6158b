"""Reports over several lines, as trainers of GRPO print them."""

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import canonical, is_report, snake_case, unique
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

#: `Iter 10:`, or `[step=10/400]` behind what a logger puts before it.
_OPEN = re.compile(
    r"^(?:\s*(?P<kind>Iter|Iteration|Step)\s+(?P<at>\d[\d,]*)\s*(?::\s*)?"
    r"|.{0,120}\[(?P<named>step|iter)=(?P<place>\d{1,9})(?:/\d{1,9})?\]\s*)$"
)
_ENTRY = re.compile(r"^\s*(?:•\s*)?([A-Za-z][\w ./()-]{0,60}?)\s*[:=]\s*(.*)$")
_PART = re.compile(rf"(?:([\wμµσ]{{1,60}})\s{{0,8}}=\s{{0,8}})?({NUMBER})\s*(%|it/s|tok/s|GB)?")

#: Lines that a block may have; after them it is taken to be over.
MAX_BLOCK = 80


class Block(LineFormat):
    """`Iter 10:`, and `Name: value` lines below it."""

    name = "blocks"
    priority = 65
    example = "Iter 10:\n  Loss: 2.5\n  Rewards: μ=0.5, σ=0.1\n====\nIter 20:\n  Loss: 2.25\n====\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._step: tuple[str, float] | None = None
        self._line = 0
        self._row: dict[str, float] = {}

    def read(self, number: int, line: str) -> bool:
        if match := _OPEN.match(line):
            self.finish()
            kind, at = match["kind"] or match["named"], match["at"] or match["place"]
            self._step = (kind.lower(), float(at.replace(",", "")))
            self._line = number
            return True
        # A progress bar between the lines is another format's.
        if self._step is None or "%|" in line:
            return False
        text = line.strip()
        if number - self._line > MAX_BLOCK or (self._row and text and not text.strip("=")):
            self.finish()
            return False
        entry = _ENTRY.match(line)
        if entry is None:
            return not text.strip("-=")
        label, rest = entry.groups()
        # `512 (limit: 512)`: the setting is not a measurement.
        for key, number_text, unit in _PART.findall(rest.split("(")[0]):
            if (value := to_number(number_text)) is not None:
                own = f"{label} {snake_case(key)}" if key else label
                self._row.setdefault(canonical(unit if unit.endswith("/s") else own), value)
        return True

    def finish(self) -> None:
        if self._step is not None and is_report(self._row):
            names = unique(self._row, self._row)
            row = {
                name: value for name, value in zip(names, self._row.values(), strict=True) if name
            }
            self.add(self._line, self._step, row)
        self._step, self._row = None, {}
