"""The coloured output of mlx-lm since mid-2026: a panel of settings, and a table below it.

╭─ mlx_lm.lora ─╮
│ batch · iters   4 · 1,040 │
╰───────────────╯
iter   train_loss     tok/s     tokens
   1    val 2.936    5.26s
  10    2.662 ▼      161      3.3k
save  0000010_adapters.safetensors
"""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, Shape
from mlxdoctor.evidence.logs.metric_names import snake_case
from mlxdoctor.evidence.logs.series import MAX_HEADER, Save
from mlxdoctor.evidence.logs.text_stream import NUMBER, to_number

_TRAIN = re.compile(
    rf"(?:^|[\s%])(\d[\d,]*)\s+({NUMBER})\s*[▼▲]\s+({NUMBER})(?:\s+({NUMBER}[kKmM]?))?\s*$"
)
_VAL = re.compile(rf"(?:^|\s)(\d[\d,]*)\s+val\s+({NUMBER})(?:\s+({NUMBER})s)?\s*$")
# A terminal that could not show the arrows leaves a question mark or nothing.
_BARE = re.compile(rf"^\s*(\d[\d,]*)\s+({NUMBER})(?:\s*\S)?\s+({NUMBER})\s+({NUMBER}[kKmM]?)\s*$")
_SAVE = re.compile(r"(?:^|\s)save\s+(\S+\.(?:safetensors|npz))\s*$")
_ITERATION = re.compile(r"(?<!\d)(\d+)_adapters")
_BAR = re.compile(r"\btrain\s+\S+\s+\d+%\s+\S\s+([\d,]+)\s*/\s*([\d,]+)")
_ENTRY = re.compile(r"^(\S(?:.{0,38}?\S)?)\s{3,}(\S.*)$")
_INSIDE = re.compile(r"\s*[│|]\s(.*)$")

#: Characters of a wrapped value of a setting that are kept.
MAX_VALUE = 4096


class Panel(LineFormat):
    """`│ batch · iters   4 · 1,040 │` between `╭` and `╰`: the header, and where a run begins."""

    name = "table"
    priority = 35
    example = (
        "╭─ mlx_lm.lora ─╮\n│ model           a/b │\n│ batch · iters   4 · 40 │\n╰──╯\n"
        "iter   train_loss     tok/s     tokens\n  10    2.5 ▼      161      3.3k\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_open = False
        self._label = ""

    @property
    def is_open(self) -> bool:
        """Whether a panel is open."""
        return self._is_open

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to a panel."""
        if "▼" in line or "▲" in line:
            # A damaged row of the table, glued to the panel's edge.
            return False
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
        self.count += was_open
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


class ColouredTable(LineFormat):
    """Its rows, its bar, and the saves it lists."""

    name = "table"
    priority = 5
    example = (
        "iter   train_loss     tok/s     tokens\n   1    val 2.936    5.26s\n"
        "  10    2.5 ▼      161      3.3k\n  20    2.25 ▼      161      6.6k\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        columns = (None, "train_loss", "tokens_per_second", "trained_tokens")
        self._train = log.shape(columns, 0)
        self._brief = log.shape(columns[:3], 0)
        self._val = log.shape((None, "val_loss", "val_seconds"), 0)
        self._has_begun = False

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to the table."""
        is_read = False
        if "▼" in line or "▲" in line:
            is_read = self._read_train(number, line)
        elif "tok/s" in line and line.split()[:2] == ["iter", "train_loss"]:
            is_read = self._has_begun = True
        elif (self._has_begun or " val " in line) and (match := _VAL.search(line)):
            is_read = self._add(number, self._val, match)
        elif self._has_begun:
            is_read = self._read_rest(number, line)
        self.count += is_read
        return is_read

    def _read_train(self, number: int, line: str) -> bool:
        parts = line.split()
        # As nearly all of them are written; the pattern takes three times as long.
        if len(parts) == 5 and parts[4].endswith("k"):
            try:
                figures = parts[0], parts[1], parts[3].replace(",", ""), f"{parts[4][:-1]}e3"
                self._train.append(number, [*map(float, figures)])
                return True
            except ValueError:
                pass
        match = _TRAIN.search(line)
        if match is None:
            return False
        return self._add(number, self._train if match[4] else self._brief, match)

    def _read_rest(self, number: int, line: str) -> bool:
        if match := _SAVE.search(line):
            iteration = _ITERATION.search(match[1])
            save = Save(int(iteration[1]) if iteration else None, (match[1],))
            self.notes.saves.append(save)
        elif match := _BAR.search(line):
            self.notes.announce(number, float(match[2].replace(",", "")))
        elif match := _BARE.match(line):
            return self._add(number, self._train, match)
        return match is not None

    def _add(self, number: int, shape: Shape, match: re.Match[str]) -> bool:
        values = [to_number(text) for text in match.groups() if text]
        row = [value for value in values if value is not None]
        if len(row) != len(shape.columns):
            return False
        shape.append(number, row)
        return True
