"""The coloured table of mlx-lm since mid-2026, and the panel above it.

iter   train_loss     tok/s     tokens
   1    val 2.936    5.26s
  10    2.662 ▼      161      3.3k
save  0000010_adapters.safetensors
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlxdoctor.evidence.log_formats.events import MAX_HEADER
from mlxdoctor.evidence.log_formats.names import snake_case
from mlxdoctor.evidence.log_formats.segments import Rows
from mlxdoctor.evidence.log_formats.series import Notes, Save
from mlxdoctor.evidence.log_formats.text import NUMBER, to_number

_TRAIN = re.compile(
    rf"(?:^|[\s%])(\d[\d,]*)\s+({NUMBER})\s*[▼▲]\s+({NUMBER})(?:\s+({NUMBER}[kKmM]?))?\s*$"
)
_VAL = re.compile(rf"(?:^|\s)(\d[\d,]*)\s+val\s+({NUMBER})(?:\s+({NUMBER})s)?\s*$")
# A terminal that could not show the arrows leaves a question mark or nothing.
_BARE = re.compile(rf"^\s*(\d[\d,]*)\s+({NUMBER})(?:\s*\S)?\s+({NUMBER})\s+({NUMBER}[kKmM]?)\s*$")
_SAVE = re.compile(r"(?:^|\s)save\s+(\S+\.(?:safetensors|npz))\s*$")
_BAR = re.compile(r"\btrain\s+\S+\s+\d+%\s+\S\s+([\d,]+)\s*/\s*([\d,]+)")
_ENTRY = re.compile(r"^(\S(?:.{0,38}?\S)?)\s{3,}(\S.*)$")

#: Characters of a wrapped value that are kept.
MAX_VALUE = 4096

_TRAIN_COLUMNS = (None, "train_loss", "tokens_per_second", "trained_tokens")
_VAL_COLUMNS = (None, "val_loss", "val_seconds")


def _inside(line: str) -> str:
    """What stands between the borders of a panel's line; empty where it is no such line."""
    text = line.strip()
    if text[:1] not in ("│", "|") or not text[1:2].isspace():
        return ""
    return text[1:].strip().removesuffix("│").removesuffix("|").rstrip()


class RichTableReader:
    """Reads one line at a time into `rows` and `notes`."""

    def __init__(self, rows: Rows, notes: Notes) -> None:
        self._rows = rows
        self._notes = notes
        self._train = rows.shape(_TRAIN_COLUMNS, 0)
        self._val = rows.shape(_VAL_COLUMNS, 0)
        self._in_table = False
        self._in_panel = False
        self._label: str | None = None

    def read(self, number: int, line: str) -> bool:
        """Whether the line belonged to the table or its panel."""
        if "▼" in line or "▲" in line:
            return self._read_train(number, line)
        if self._in_table and self._read_table(number, line):
            return True
        if "tok/s" in line and line.split()[:2] == ["iter", "train_loss"]:
            self._in_table = True
            return True
        if " val " in line and (match := _VAL.search(line)):
            return self._add(number, self._val.values, self._val.lines, match)
        return self._read_panel(number, line)

    def _read_train(self, number: int, line: str) -> bool:
        parts = line.split()
        if len(parts) == 5 and parts[4][-1:] == "k":
            try:
                values = (
                    float(parts[0]),
                    float(parts[1]),
                    float(parts[3].replace(",", "")),
                    float(parts[4][:-1]) * 1000.0,
                )
            except ValueError:
                pass
            else:
                self._train.values.append(values)
                self._train.lines.append(number)
                return True
        match = _TRAIN.search(line)
        if match is None:
            return False
        if match.group(4) is None:
            named = ("iter", to_number(match.group(1)) or 0.0)
            loss, speed = to_number(match.group(2)), to_number(match.group(3))
            if loss is None or speed is None:
                return False
            self._rows.add(number, named, {"train_loss": loss, "tokens_per_second": speed})
            return True
        return self._add(number, self._train.values, self._train.lines, match)

    def _read_table(self, number: int, line: str) -> bool:
        if match := _VAL.search(line):
            return self._add(number, self._val.values, self._val.lines, match)
        if match := _SAVE.search(line):
            name = match.group(1)
            digits = re.search(r"(\d+)_adapters", name)
            self._notes.saves.append(Save(int(digits.group(1)) if digits else None, (name,)))
            return True
        if match := _BAR.search(line):
            self._notes.announced.append((number, int(match.group(2).replace(",", ""))))
            return True
        if match := _BARE.match(line):
            return self._add(number, self._train.values, self._train.lines, match)
        return False

    def _add(
        self, number: int, values: list[Sequence[float]], lines: list[int], match: re.Match[str]
    ) -> bool:
        read = [to_number(text) for text in match.groups() if text is not None]
        width = len(_TRAIN_COLUMNS if values is self._train.values else _VAL_COLUMNS)
        if len(read) != width or any(value is None for value in read):
            return False
        values.append(tuple(value for value in read if value is not None))
        lines.append(number)
        return True

    def _read_panel(self, number: int, line: str) -> bool:
        if "╭" in line:
            self._in_panel, self._label = True, None
            self._notes.run_marks.append(number)
            return True
        if "╰" in line:
            was, self._in_panel = self._in_panel, False
            return was
        row = _inside(line) if self._in_panel else ""
        if not row:
            return False
        if entry := _ENTRY.match(row):
            self._label = entry.group(1)
            self._enter(number, self._label, entry.group(2))
        elif self._label is not None:
            # A value wider than the terminal is wrapped.
            text = self._notes.header.get(self._key(), "") + row
            self._enter(number, self._label, text[:MAX_VALUE])
        return True

    def _key(self) -> str:
        return snake_case(self._label or "")

    def _enter(self, number: int, label: str, value: str) -> None:
        if len(self._notes.header) >= MAX_HEADER:
            return
        names, values = label.split("·"), value.split("·")
        if len(names) > 1 and len(names) == len(values):
            for name, one in zip(names, values, strict=True):
                self._notes.header[snake_case(name)] = one.strip()
        else:
            self._notes.header[snake_case(label)] = value
        if "iters" in (snake_case(name) for name in names):
            count = to_number(values[-1])
            if count is not None:
                self._notes.announced.append((number, int(count)))
