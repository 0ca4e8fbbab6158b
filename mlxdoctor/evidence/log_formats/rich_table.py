"""The coloured table of mlx-lm since mid-2026.

iter   train_loss     tok/s     tokens
   1    val 2.936    5.26s
  10    2.662 ▼      161      3.3k
save  0000010_adapters.safetensors
"""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.lines import NUMBER, to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.series import Save
from mlxdoctor.evidence.logs.shapes import Shape

_TRAIN = re.compile(
    rf"(?:^|[\s%])(\d[\d,]*)\s+({NUMBER})\s*[▼▲]\s+({NUMBER})(?:\s+({NUMBER}[kKmM]?))?\s*$"
)
_VAL = re.compile(rf"(?:^|\s)(\d[\d,]*)\s+val\s+({NUMBER})(?:\s+({NUMBER})s)?\s*$")
# A terminal that could not show the arrows leaves a question mark or nothing.
_BARE = re.compile(rf"^\s*(\d[\d,]*)\s+({NUMBER})(?:\s*\S)?\s+({NUMBER})\s+({NUMBER}[kKmM]?)\s*$")
_SAVE = re.compile(r"(?:^|\s)save\s+(\S+\.(?:safetensors|npz))\s*$")
_BAR = re.compile(r"\btrain\s+\S+\s+\d+%\s+\S\s+([\d,]+)\s*/\s*([\d,]+)")


class RichTable(LineFormat):
    """Its rows, its bar, and the saves it lists."""

    name = "table"
    priority = 20
    example = (
        "iter   train_loss     tok/s     tokens\n   1    val 2.936    5.26s\n"
        "  10    2.5 ▼      161      3.3k\n  20    2.25 ▼      161      6.6k\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        columns = (None, "train_loss", "tokens_per_second", "trained_tokens")
        self._train = log.rows.shape(columns, 0)
        self._brief = log.rows.shape(columns[:3], 0)
        self._val = log.rows.shape((None, "val_loss", "val_seconds"), 0)
        self._has_begun = False

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to the table."""
        found = self._read(number, line)
        self.count += found
        return found

    def _read(self, number: int, line: str) -> bool:
        if "▼" in line or "▲" in line:
            return self._read_train(number, line)
        if "tok/s" in line and line.split()[:2] == ["iter", "train_loss"]:
            self._has_begun = True
            return True
        if (self._has_begun or " val " in line) and (match := _VAL.search(line)):
            return self._add(number, self._val, match)
        return self._has_begun and self._read_rest(number, line)

    def _read_train(self, number: int, line: str) -> bool:
        parts = line.split()
        # As nearly all of them are written; the pattern takes three times as long.
        if len(parts) == 5 and parts[4].endswith("k"):
            try:
                step, loss, tokens = float(parts[0]), float(parts[1]), float(parts[4][:-1])
                values = (step, loss, float(parts[3].replace(",", "")), tokens * 1000.0)
            except ValueError:
                pass
            else:
                self._train.values.append(values)
                self._train.lines.append(number)
                return True
        match = _TRAIN.search(line)
        if match is None:
            return False
        return self._add(number, self._brief if match.group(4) is None else self._train, match)

    def _read_rest(self, number: int, line: str) -> bool:
        if match := _SAVE.search(line):
            name = match.group(1)
            digits = re.search(r"(?<!\d)(\d+)_adapters", name)
            self.notes.saves.append(Save(int(digits.group(1)) if digits else None, (name,)))
        elif match := _BAR.search(line):
            self.notes.announce(number, float(match.group(2).replace(",", "")))
        elif match := _BARE.match(line):
            return self._add(number, self._train, match)
        return match is not None

    def _add(self, number: int, shape: Shape, match: re.Match[str]) -> bool:
        values = [
            value for text in match.groups() if text and (value := to_number(text)) is not None
        ]
        if len(values) != len(shape.columns):
            return False
        shape.values.append(values)
        shape.lines.append(number)
        return True
