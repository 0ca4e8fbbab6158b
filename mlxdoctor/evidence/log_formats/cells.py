"""Tables with a cell on each line, as notebooks leave them in Markdown and in pasted text."""

import re

from mlxdoctor.evidence.log_formats.columns import Head, meaning
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import STEPS, snake_case
from mlxdoctor.evidence.logs.text_stream import is_count, to_number

_TAG = re.compile(r"</?[a-z][^<>]{0,80}>", re.IGNORECASE)
_NAME = re.compile(r"[^\W\d][\w /%.-]{0,59}")
#: Columns that such a table has at most.
MAX_COLUMNS = 24


class Cells(LineFormat):
    """`Step`, `Training Loss`, `10`, `2.5`, `20`, `2.25`: names and figures, one a line."""

    name = "cells"
    priority = 75
    example = "Step\nTraining Loss\n10\n2.5\n20\n2.25\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._names: list[str] = []
        self._head: Head | None = None
        self._row: list[float | None] = []

    def read(self, number: int, line: str) -> bool:
        text = (_TAG.sub("", line) if "<" in line else line).strip()
        if not text:
            return False
        value = to_number(text)
        if value is None and text.lower() != "no log":
            is_name = _NAME.fullmatch(text) and len(self._names) < MAX_COLUMNS
            begins = snake_case(text) in (*STEPS, "epoch")
            names = [] if begins or self._head is not None else self._names
            self._names = [*names, text] if is_name and (begins or names) else []
            self._head, self._row = None, []
            return False
        if self._head is None and len(self._names) > 1:
            self._head = meaning(self._names, "|")
        if self._head is None:
            return False
        self._row.append(value)
        if len(self._row) == self._head.size:
            self._add(number, self._row, self._head)
            self._row = []
        return True

    def _add(self, number: int, row: list[float | None], head: Head) -> None:
        count = row[head.step[0]] if head.step is not None else None
        if head.step is None or count is None or not is_count(count):
            return
        values = {name: row[index] for index, _, name in head.metrics}
        known = {name: value for name, value in values.items() if value is not None}
        self.add(number, (head.step[1], count), known)
