"""A log while it is being written: lines in, reports out, whatever the format.

Lines are read once and forgotten. Only a file that is one document (a `trainer_state.json`, say)
is written anew by its trainer at every save; it is read as a whole then, up to the limit for
such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.logs.lines import lines
from mlxdoctor.evidence.logs.log_format import HEAD_LINES, LogSoFar, WholeFormat, formats
from mlxdoctor.evidence.logs.reader import LineReader
from mlxdoctor.evidence.logs.series import LogFailure
from mlxdoctor.evidence.logs.shapes import TRAIN, Shape
from mlxdoctor.evidence.source import read_text
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.reports import LogRow

#: Characters at the beginning of a log that may be the head of a table.
HEAD_CHARACTERS = 1 << 17


class ReportStream:
    """Turns the text of a growing log into reports, in order.

    Args:
        path: the file's name, from which a TensorBoard download names its metric.
    """

    def __init__(self, path: Path) -> None:
        log = LogSoFar(path)
        self.notes, self._rows = log.notes, log.rows
        self._lines = LineReader(log)
        self._whole = [kind(log) for kind in formats(WholeFormat)]
        self._table: WholeFormat | None = None
        self._line = 0
        self._head = ""
        self._header = ""
        self._last_row = 0
        self._last_step: dict[str, int] = {}
        self._in_epoch: dict[str, _Epoch] = {}
        self._has_train_loss = False
        self._unit = "report"
        #: Iterations of the saves that the log has named so far.
        self.saves: list[int] = []

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

    def feed(self, text: str) -> list[LogRow]:
        """Read whole lines that were added, and return the reports in them."""
        is_head = self._line < HEAD_LINES and len(self._head) < HEAD_CHARACTERS
        if self._table is None and is_head:
            self._look_for_table(text)
        first, self._line = self._line, self._line + text.count("\n")
        if self._table is not None:
            # The table's own reader needs the header above the rows that are new.
            begins = text.lstrip().startswith(self._header)
            self._table.read(iter((text if begins else f"{self._header}\n{text}",)))
        else:
            self._lines.read([(first + number, line) for number, line in lines(text)])
            self._lines.catch_up()
        return list(self._reports())

    def may_be_document(self, text: str) -> bool:
        """Whether a log that begins so may be one document, which is written anew."""
        return any(not one.grows and one.begins(text.lstrip()) for one in self._whole)

    def read_document(self, text: str) -> list[LogRow]:
        """The reports in a log that is one document; none where it is not one."""
        for one in self._whole:
            rest = iter((text,)) if one.grows else one.read(iter((text,)))
            if rest is None:
                return list(self._reports())
            if one.count:
                # A notebook: what its cells printed is a log of lines.
                return [*self.feed("".join(rest)), *self.finish()]
        return []

    def finish(self) -> list[LogRow]:
        """Read what is still open at the end of the log."""
        self._lines.finish()
        return list(self._reports())

    def _look_for_table(self, text: str) -> None:
        self._head += text
        head = self._head.lstrip()
        for one in self._whole:
            if one.grows and one.begins(head):
                self._table, self._header = one, head.splitlines()[0]

    def _reports(self) -> Iterator[LogRow]:
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
        for save in notes.saves:
            if save.iteration is not None and save.iteration not in self.saves[-1:]:
                self.saves.append(save.iteration)
        # A training of weeks says the same things again and again; the last is what counts.
        for said in (notes.announced, notes.run_marks, notes.saves, notes.truncations):
            del said[:-1]
        del notes.failures[:-1]

    def _report(self, shape: Shape, values: Sequence[float]) -> LogRow:
        row = {
            name: _float(value)
            for place, (name, value) in enumerate(zip(shape.columns, values, strict=True))
            if name is not None and place != shape.step
        }
        if "micro_loss" in row and not self._has_train_loss:
            row["train_loss"] = row.pop("micro_loss")
        step = self._step(shape, values, row)
        return LogRow(step, row, shape.run, self._unit)

    def _over_epochs(self, run: str, counted: int, row: dict[str, float]) -> int:
        """The step over all epochs, where a log counts anew in each."""
        epoch = row.get("epoch")
        if epoch is None:
            return counted
        last = self._in_epoch.get(run, _Epoch(epoch, 0, 0))
        goes_on = epoch == last.number or (epoch > last.number and counted > last.step)
        before = last.before if goes_on else 0
        if epoch > last.number and counted <= last.step:
            before = last.before + last.step
        step = max(counted, last.step) if epoch == last.number else counted
        self._in_epoch[run] = _Epoch(epoch, step, before)
        return before + counted

    def _step(self, shape: Shape, values: Sequence[float], row: dict[str, float]) -> int:
        """The step of a row; a row that names none follows the one before it."""
        last = self._last_step.get(shape.run, 0)
        step = last + 1 if "train_loss" in row else last
        if shape.step is not None:
            self._unit = shape.axis
            counted = _float(values[shape.step])
            step = (
                self._over_epochs(shape.run, int(counted), row) if abs(counted) < 2.0**62 else last
            )
        self._last_step[shape.run] = step
        return step


@dataclass(frozen=True)
class _Epoch:
    """Where a run is: its epoch, the step counted in it, and the steps of those before."""

    number: float
    step: int
    before: int


def read_log(path: Path) -> list[LogRow]:
    """Every report in a log that is complete.

    Raises:
        InputError: it can't be read.
    """
    if whole := read_whole(path):
        return whole
    stream = ReportStream(path)
    text, _ = read_text(path, "log_bytes")
    return [*stream.feed(text), *stream.finish()]


def read_whole(path: Path) -> list[LogRow]:
    """The reports in a file that is one document; none where it is not one, or not yet."""
    try:
        text, _ = read_text(path, "json_bytes")
    except InputError:
        return []
    return ReportStream(path).read_document(text)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        # JSON has integers of any size.
        return float("inf") if value > 0 else float("-inf")
