"""Figures from before and after a training side by side, as evaluations print them."""

import re

from mlxdoctor.evidence.log_formats.columns import cells_of, undrawn
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.series import MAX_HEADER
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

_BEFORE = r"\b(?:before|baseline|base|untuned|original)\b"
_AFTER = r"\b(?:after|trained|(?:fine-?)?tuned)\b"
#: `easy  base=0.940  trained=0.790`
_PAIR = re.compile(
    rf"^\W{{0,8}}(\w[\w ./-]{{0,40}}?)\W{{1,20}}{_BEFORE}\s?[:=]\s{{0,4}}({NUMBER})\W{{1,8}}"
    rf"{_AFTER}\s?[:=]\s{{0,4}}({NUMBER})",
    re.IGNORECASE,
)
#: What is no figure of a model.
_OF_THE_MACHINE = re.compile(
    r"\b(?:memory|mem|vram|gpu|ram|time|seconds|scale|objects|size|params|parameters|rate|lr)\b",
    re.IGNORECASE,
)
_NAMED = re.compile(rf"(?P<before>{_BEFORE})|(?P<after>{_AFTER})", re.IGNORECASE)


class Comparisons(LineFormat):
    """Lines and tables with a figure of the base model, or from before, and one from after."""

    priority = 105
    example = (
        "Step 10 | loss 2.5\nStep 20 | loss 2.25\n"
        "| Task | Before | After |\n|---|---|---|\n| easy | 0.94 | 0.79 |\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        #: Of the table that is open: how many cells it has, and which two are compared.
        self._head: tuple[int, int, int] | None = None

    def read(self, number: int, line: str) -> bool:
        if pair := _PAIR.match(line):
            return self._add(number, *pair.groups())
        text = undrawn(line)
        if not text.startswith("|"):
            self._head = self._head if text.startswith("+") else None
            return False
        cells = cells_of(text)
        named = [match.lastgroup if (match := _NAMED.search(cell)) else None for cell in cells]
        if named.count("before") == named.count("after") == 1:
            self._head = len(cells), named.index("before"), named.index("after")
            return True
        if self._head is None or len(cells) != self._head[0]:
            self._head = None
            return False
        _, before, after = self._head
        return self._add(number, cells[0], cells[before], cells[after])

    def _add(self, number: int, name: str, before: str, after: str) -> bool:
        values = to_number(before), to_number(after)
        if None in values or _OF_THE_MACHINE.search(name) or len(self.notes.compared) >= MAX_HEADER:
            return False
        self.notes.compared.append((number, name.strip(), values[0] or 0.0, values[1] or 0.0))
        return True
