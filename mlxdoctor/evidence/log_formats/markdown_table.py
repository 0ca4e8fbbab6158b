"""Tables in Markdown, from issues and reports, and those that are drawn with lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mlxdoctor.evidence.logs.lines import is_count, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, snake_case

#: The lines of drawn tables, as Markdown has them.
_DRAWN = str.maketrans(
    {
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("━─═╌┄", "-"),
        **dict.fromkeys("┏┓┗┛┡┩┢┪┣┫┝┥┠┨╇╈┳┻╋┼├┤┬┴└┘┌┐╭╮╰╯╪╞╡╤╧╔╗╚╝╠╣╦╩╬╥╨╫╟╢╒╕╘╛", "+"),
    }
)
_RULE = re.compile(r"^[\s|:+=-]*$")
_OPENINGS = frozenset("|>│┃║┡├╞╠+┣┝┢")
#: A row's run, its step column's name and value, and its metrics.
_Row = tuple[str, tuple[str, float] | None, dict[str, float]]


class MarkdownTable(LineFormat):
    """`| Step | loss |` and the rows below it."""

    name = "Markdown"
    priority = 70
    understood = "Markdown tables"
    example = "| Step | Training Loss |\n|---|---|\n| 10 | 2.5 |\n| 20 | **2.25** |\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._names: list[str] = []
        self._last = -1

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to a table of metrics."""
        text = line.strip()
        if text[:1] not in _OPENINGS:
            return False
        text = text.lstrip("> ").translate(_DRAWN)
        if text.startswith("+") and self._last == number - 1 and _RULE.match(text):
            self._last = number
            return True
        if not (text.startswith("|") and text.count("|") >= 3):
            return False
        cells = [cell.strip().strip("*`_ ") for cell in text.strip("|").split("|")]
        values = [to_number(cell) for cell in cells]
        has_values = any(value is not None for value in values)
        follows = number == self._last + 1
        if _RULE.match(text):
            self._last = number if follows else self._last
            return follows
        if not follows or not (self._names or has_values):
            self._names = cells if any("loss" in cell.lower() for cell in cells) else []
            self._last = number if self._names else self._last
            return bool(self._names)
        self._last = number
        if not self._names or not has_values:
            return bool(self._names)
        for run, named, row in self._runs(values):
            if row:
                self.add(number, named, row, run)
        return True

    def _runs(self, values: Sequence[float | None]) -> Iterator[_Row]:
        """The row's runs: those whose losses have a prefix, `CUDA loss` say, and the rest."""
        lowered = [snake_case(name) for name in self._names]
        # A row may have more cells than the header.
        cells = {
            index: value
            for index, value in enumerate(values[: len(self._names)])
            if value is not None
        }
        step = next((lowered.index(name) for name in (*STEPS, "epoch") if name in lowered), None)
        if step is None or not is_count(cells.get(step, -1.0)):
            yield "", None, {lowered[index]: value for index, value in cells.items()}
            return
        named = (lowered[step], cells.pop(step))
        for prefix in self._prefixes():
            mine = [index for index in cells if self._names[index].startswith(prefix)]
            yield (
                prefix,
                named,
                {canonical(self._names[index][len(prefix) :]): cells.pop(index) for index in mine},
            )
        row = {canonical(self._names[index]): value for index, value in cells.items()}
        if is_report(row):
            yield "", named, row

    def _prefixes(self) -> list[str]:
        return [
            name[: -len("loss")].rstrip(" \t_/-").strip()
            for name in self._names
            if name.lower().endswith("loss") and canonical(name) not in ("train_loss", "val_loss")
        ]
