"""The panel with which mlx-lm since mid-2026 says what it is about to do."""

from __future__ import annotations

import re

from mlxdoctor.evidence.logs.lines import to_number
from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import snake_case
from mlxdoctor.evidence.logs.series import MAX_HEADER

_ENTRY = re.compile(r"^(\S(?:.{0,38}?\S)?)\s{3,}(\S.*)$")

#: Characters of a wrapped value that are kept.
MAX_VALUE = 4096


class RichPanel(LineFormat):
    """`│ batch · iters   4 · 1,040 │` between `╭` and `╰`: the header, and where a run begins."""

    # One output with the table below it.
    name = "table"
    priority = 35
    example = (
        "╭─ mlx_lm.lora ─╮\n│ model           a/b │\n│ batch · iters   4 · 40 │\n╰──╯\n"
        "iter   train_loss     tok/s     tokens\n  10    2.5 ▼      161      3.3k\n"
    )

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_open = False
        self._label: str | None = None
        self._is_traceback = False

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to a panel."""
        found = self._read(number, line)
        self.count += found
        return found

    @property
    def is_open(self) -> bool:
        """Whether a panel is open, or a traceback in one."""
        return self._is_open or self._is_traceback

    def _read(self, number: int, line: str) -> bool:
        if "▼" in line or "▲" in line:
            # A damaged row of the table, glued to the panel's edge.
            return False
        frames = self.log.frames
        if "╭" in line and "Traceback (most recent call last)" in line:
            self._is_open = False
            frames.begin(number)
            self._is_traceback = True
            return True
        if self._is_traceback:
            self._is_traceback = frames.begun is not None and line.lstrip()[:1] in "│|"
            if self._is_traceback:
                frames.read(_inside(line))
                return True
            frames.has_ended = frames.begun is not None
            return "╰" in line
        if "╭" in line and "┬" not in line:
            self._is_open, self._label = True, None
            self.notes.run_marks.append(number)
            return True
        if "╰" in line:
            was_open, self._is_open = self._is_open, False
            return was_open
        row = _inside(line) if self._is_open else ""
        if not row:
            return False
        if entry := _ENTRY.match(row):
            self._label = entry.group(1)
            self._enter(number, self._label, entry.group(2))
        elif self._label is not None:
            # A value wider than the terminal is wrapped.
            text = self.notes.header.get(snake_case(self._label), "") + row
            self._enter(number, self._label, text[:MAX_VALUE])
        return True

    def _enter(self, number: int, label: str, value: str) -> None:
        if len(self.notes.header) >= MAX_HEADER:
            return
        names, values = label.split("·"), value.split("·")
        if len(names) > 1 and len(names) == len(values):
            for name, one in zip(names, values, strict=True):
                self.notes.header[snake_case(name)] = one.strip()
        else:
            self.notes.header[snake_case(label)] = value
        if "iters" in map(snake_case, names) and (count := to_number(values[-1])) is not None:
            self.notes.announce(number, count)


def _inside(line: str) -> str:
    """What stands between the borders of a panel's line; empty where it is no such line."""
    text = line.strip()
    if text[:1] not in ("│", "|") or not text[1:2].isspace():
        return ""
    return text[1:].strip().removesuffix("│").removesuffix("|").rstrip()
