"""The coloured output of mlx-lm since mid-2026: a panel of settings, and a table below it.

╭─ mlx_lm.lora ─╮
│ batch · iters   4 · 1,040 │
╰───────────────╯
iter   train_loss     tok/s     tokens
   1    val 2.936    5.26s
  10    2.662 ▼      161      3.3k
save  0000010_adapters.safetensors
"""

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import snake_case
from mlxdoctor.evidence.logs.series import MAX_HEADER
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

#: A row's columns, and how it looks. A terminal that could not show the arrows leaves a question
#: mark or nothing; so does a row of other figures, which counts below the table's head only.
_STEP, _FIGURE = r"(\d[\d,]*)", rf"({NUMBER}[kKmM]?)"
_TRAIN = (None, "train_loss", "tokens_per_second", "trained_tokens")
_ROWS = (
    (_TRAIN, re.compile(rf"(?:^|[\s%]){_STEP}\s+{_FIGURE}\s*[▼▲]\s+{_FIGURE}\s+{_FIGURE}\s*$")),
    (
        (None, "val_loss", "val_seconds"),
        re.compile(rf"(?:^|\s){_STEP}\s+val\s+{_FIGURE}\s+{_FIGURE}s\s*$"),
    ),
    (_TRAIN, re.compile(rf"^\s*{_STEP}\s+{_FIGURE}(?:\s*\S)?\s+{_FIGURE}\s+{_FIGURE}\s*$")),
)
_ENTRY = re.compile(r"^(\S(?:.{0,38}?\S)?)\s{3,}(\S.*)$")
_INSIDE = re.compile(r"\s*[│|]\s(.*)$")

#: Characters of a wrapped value of a setting that are kept.
MAX_VALUE = 4096


class ColouredTable(LineFormat):
    """The panel, which is the header and shows where a run begins, and the rows of the table.

    The saves between them are read with other messages.
    """

    name = "table"
    priority = 5
    example = (
        "╭─ mlx_lm.lora ─╮\n│ model           a/b │\n│ batch · iters   4 · 40 │\n╰──╯\n"
        "iter   train_loss     tok/s     tokens\n   1    val 2.936    5.26s\n"
        "  10    2.5 ▼      161      3.3k\n  20    2.25 ▼      161      6.6k\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_open = False
        self._label = ""
        self._has_begun = False

    def read(self, number: int, line: str) -> bool:
        is_head = "tok/s" in line and line.split()[:2] == ["iter", "train_loss"]
        self._has_begun = self._has_begun or is_head
        is_marked = "▼" in line or "▲" in line or " val " in line
        is_row = is_head or ((self._has_begun or is_marked) and self._row(number, line))
        is_read = is_row or self._panel(number, line)
        self.count += is_read
        return is_read

    def _panel(self, number: int, line: str) -> bool:
        """Read a line of the panel, `│ batch · iters   4 · 1,040 │` between `╭` and `╰`."""
        was_open = self._is_open
        if "╭" in line and "┬" not in line:
            was_open = self._is_open = True
            self._label = ""
            self.notes.run_marks.append(number)
        elif "╰" in line:
            self._is_open = False
        elif was_open and (inside := _INSIDE.match(line)):
            self._enter(number, inside[1].strip().removesuffix("│").removesuffix("|").rstrip())
        else:
            return False
        return was_open

    def _enter(self, number: int, row: str) -> None:
        header = self.notes.header
        value = row
        if entry := _ENTRY.match(row):
            self._label, value = entry.groups()
        elif self._label:
            # A value wider than the terminal is wrapped.
            value = (header.get(snake_case(self._label), "") + row)[:MAX_VALUE]
        if not self._label or len(header) >= MAX_HEADER:
            return
        names, values = self._label.split("·"), value.split("·")
        if len(names) != len(values):
            names, values = [self._label], [value]
        for name, text in zip(names, values, strict=True):
            header[snake_case(name)] = text.strip()
            if snake_case(name) == "iters" and (count := to_number(text)) is not None:
                self.notes.announce(number, count)

    def _row(self, number: int, line: str) -> bool:
        for columns, pattern in _ROWS if self._has_begun else _ROWS[:-1]:
            if match := pattern.search(line):
                values = [to_number(figure) or 0.0 for figure in match.groups()]
                self.log.shape(columns, 0).append(number, values)
                return True
        return False
