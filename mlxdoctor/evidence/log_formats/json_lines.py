"""Metrics as JSON, one object a line: callbacks, wandb and other exports."""

from __future__ import annotations

import json
import re
from typing import Any

from mlxdoctor.evidence.logs.json_records import Records
from mlxdoctor.evidence.logs.log_format import LIKE_NUMBER, LineFormat, LogSoFar
from mlxdoctor.evidence.logs.text_stream import MAX_RECORD

#: Lines parsed together: one call for many lines is twice as fast as one for each.
BATCH = 4096
#: Sets of keys for which patterns are remembered.
MAX_KEYS = 4096


class JsonLines(LineFormat):
    """Collects lines and reads them in batches."""

    name = "JSON lines"
    priority = 40
    understood = "JSON lines of metrics"
    example = '{"step": 1, "train_loss": 2.5, "lr": 1e-5}\n{"step": 2, "train_loss": NaN}\n'
    takes_long_lines = True

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._records = Records(log.rows)
        self._pending: list[tuple[int, str]] = []
        self._patterns: dict[tuple[str, ...], re.Pattern[str] | None] = {}
        self._batch = 1

    def read(self, number: int, line: str) -> bool:
        """Whether the line looks like a JSON object, which is read in its batch."""
        if not line.startswith('{"'):
            return False
        text = line.strip().rstrip(",")
        if not text.endswith("}") or len(text) > MAX_RECORD:
            # An object that a kill cut off is left out: its last number may be half of one.
            return "}" not in line
        self._pending.append((number, text))
        if len(self._pending) >= self._batch:
            self.catch_up()
            # Small batches at first, so that the patterns of a regular file are found early.
            self._batch = min(2 * self._batch, BATCH)
        return True

    def catch_up(self) -> None:
        """Read what was collected."""
        pending, self._pending = self._pending, []
        try:
            # A line that ends one object and begins another would shift the numbering.
            records = json.loads("[" + ",".join(text for _, text in pending) + "]")
            if len(records) != len(pending):
                raise ValueError("more than one object in a line")
        except (ValueError, RecursionError):
            records = [_parse(text) for _, text in pending]
        for (number, text), record in zip(pending, records, strict=True):
            if isinstance(record, dict) and self._records.add(number, record):
                self.count += 1
                self._look_at(tuple(record), text)

    def _look_at(self, keys: tuple[str, ...], text: str) -> None:
        """Make a pattern of a record of numbers; it reads its like without parsing JSON."""
        shape = self._records.shapes.get(keys)
        if shape is None:
            return
        if keys not in self._patterns and len(self._patterns) < MAX_KEYS:
            self._patterns[keys] = _pattern(keys, text)
        pattern = self._patterns.get(keys)
        if pattern is not None and pattern.fullmatch(text):
            self.learn(pattern, shape)

    def finish(self) -> None:
        """Read the rest; a lone object that names no iteration is a result, not a log."""
        self.catch_up()
        if self.count == 1:
            for shape in self._records.shapes.values():
                if shape.axis == "row" and "epoch" not in shape.columns:
                    shape.values.clear()
                    shape.lines.clear()
                    self.count = 0


def _pattern(keys: tuple[str, ...], text: str) -> re.Pattern[str] | None:
    """A pattern for records of numbers that are spaced as this one is; None for odd spacing."""
    names = [re.escape(json.dumps(key)) for key in keys]
    for colon, comma in ((": ", ", "), (":", ",")):
        inside = comma.join(f"{name}{colon}({LIKE_NUMBER})" for name in names)
        pattern = re.compile(rf"\{{{inside}\}}")
        if pattern.fullmatch(text):
            return pattern
    return None


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
