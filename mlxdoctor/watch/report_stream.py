"""A log while it is being written: lines in, reports out, whatever the format.

Lines are read once and forgotten. Only a file that is one JSON document (a
`trainer_state.json`, say) is written anew by its trainer at every save; it is read as a whole
then, up to the limit for such files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.log_formats.documents import is_document, read_document
from mlxdoctor.evidence.log_formats.line_readers import LineReaders
from mlxdoctor.evidence.log_formats.segments import TRAIN, Rows, Shape
from mlxdoctor.evidence.log_formats.series import LogFailure, Notes
from mlxdoctor.evidence.log_formats.tables import HEADER_LINES, csv_header, read_csv
from mlxdoctor.evidence.log_formats.text import lines
from mlxdoctor.evidence.source import read_text
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.reports import Report


class ReportStream:
    """Turns the text of a growing log into reports, in order.

    Args:
        path: the file's name, from which a TensorBoard download names its metric.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.notes = Notes()
        self._rows = Rows()
        self._readers = LineReaders(self._rows, self.notes)
        self._line = 0
        self._head: list[str] = []
        self._header: str | None = None
        self._last_row = 0
        self._last_step: dict[str, int] = {}
        self._has_train_loss = False

    @property
    def iterations(self) -> int | None:
        """How long the training is to be, where the log says so."""
        return self.notes.announced[-1][1] if self.notes.announced else None

    @property
    def failure(self) -> LogFailure | None:
        """Why the training broke off, where the log says that after its last report."""
        last = self.notes.failures[-1] if self.notes.failures else None
        return last if last is not None and last.line_number > self._last_row else None

    @property
    def begins_anew(self) -> bool:
        """Whether the trainer announced a start after the last report."""
        return bool(self.notes.run_marks) and self.notes.run_marks[-1] > self._last_row

    def feed(self, text: str) -> list[Report]:
        """Read whole lines that were added, and return the reports in them."""
        pieces = list(lines(text))
        if self._header is None and self._line < HEADER_LINES:
            self._find_header(text)
        first, self._line = self._line, self._line + text.count("\n")
        if self._header is not None:
            self._read_table(text)
        else:
            self._readers.read([(first + number, line) for number, line in pieces])
            self._readers.catch_up()
        return list(self._reports())

    def read_document(self, value: Any) -> list[Report]:
        """The reports in a parsed JSON document."""
        read_document(value, self._rows)
        return list(self._reports())

    def finish(self) -> list[Report]:
        """Read what is still open at the end of the log."""
        self._readers.finish()
        return list(self._reports())

    def _find_header(self, text: str) -> None:
        self._head = [*self._head, *text.splitlines()][:HEADER_LINES]
        if csv_header(self._head) is not None:
            self._header = next(line for line in self._head if line.strip())

    def _read_table(self, text: str) -> None:
        # The table's own reader needs the header above the rows that are new.
        body = text if text.lstrip().startswith(self._header or "") else f"{self._header}\n{text}"
        read_csv(body, self._path, self._rows)

    def _reports(self) -> Iterator[Report]:
        for line, shape, values in self._rows.drain():
            self._last_row = max(self._last_row, line)
            if shape.fallback and self._has_train_loss:
                continue
            if shape.role == TRAIN and not shape.fallback:
                self._has_train_loss = True
            yield self._report(shape, values)
        self._forget()

    def _forget(self) -> None:
        notes = self.notes
        # A training of weeks says the same things again and again; the last is what counts.
        for said in (notes.announced, notes.run_marks, notes.saves, notes.truncations):
            del said[:-1]
        del notes.failures[:-1]

    def _report(self, shape: Shape, values: Sequence[float]) -> Report:
        row = {
            name: _float(value)
            for place, (name, value) in enumerate(zip(shape.columns, values, strict=True))
            if name is not None and place != shape.step
        }
        if "micro_loss" in row and not self._has_train_loss:
            row["train_loss"] = row.pop("micro_loss")
        step = self._step(shape, values, row)
        return Report(step, row, shape.run)

    def _step(self, shape: Shape, values: Sequence[float], row: dict[str, float]) -> int:
        """The step of a row; a row that names none follows the one before it."""
        last = self._last_step.get(shape.run, 0)
        step = last + 1 if "train_loss" in row else last
        if shape.step is not None:
            counted = _float(values[shape.step])
            step = int(counted) if abs(counted) < 2.0**62 else last
        self._last_step[shape.run] = step
        return step


def read_log(path: Path) -> list[Report]:
    """Every report in a log that is complete.

    Raises:
        InputError: it can't be read.
    """
    if whole := read_whole(path):
        return whole
    stream = ReportStream(path)
    text, _ = read_text(path, "log_bytes")
    return [*stream.feed(text), *stream.finish()]


def read_whole(path: Path) -> list[Report]:
    """The reports in a file that is one JSON document; none where it is not one, or not yet."""
    try:
        text, _ = read_text(path, "json_bytes")
        value: Any = json.loads(text)
    except (InputError, ValueError, RecursionError):
        return []
    if not is_document(value):
        return []
    stream = ReportStream(path)
    return stream.read_document(value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # JSON has integers of any size.
        return float("inf") if value > 0 else float("-inf")
