"""One log, whatever its format: its rows and notes, from a text that comes in pieces."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

from mlxdoctor.evidence.logs.lines import NUMBER, lines
from mlxdoctor.evidence.logs.log_format import (
    LINES_BETWEEN,
    LineFormat,
    LogSoFar,
    WholeFormat,
    formats,
)
from mlxdoctor.evidence.logs.segments import segments
from mlxdoctor.evidence.logs.series import Notes, Segment
from mlxdoctor.safety.reading_limits import current, exceeded

#: What a line of figures on a loss looks like, whatever else is in it.
_LOSS = re.compile(rf"\bloss(?:es)?\b['\"]?\s{{0,4}}[:=~|]{{0,2}}\s{{0,4}}{NUMBER}", re.IGNORECASE)
_NO_REPORT = re.compile(
    r"\b(?:best|final|min|lowest|average|avg|initial|summary|test|scale|target|threshold|skipp?(?:ed|ing)"
    r"|improved|last|total|non-finite)\b",
    re.IGNORECASE,
)
#: Characters of a line that says nothing by itself.
SHORT = 2
#: Lines that could not be read, of which the numbers are kept.
MAX_UNREAD = 1000
#: Characters at the beginning of a log that decide of which kind it is.
SNIFFED = 64 << 10


def read_log(texts: Iterable[str], path: Path, notes: Notes) -> list[Segment]:
    """The runs in a log; what it says beside them is added to `notes`.

    Args:
        texts: its text in pieces, each ending where a line ends.
        path: its name.
    """
    log = LogSoFar(path)
    read_rows(texts, log)
    most = current().log_runs
    runs = segments(log.rows, log.notes.run_marks, log.notes.announced)
    found = list(islice(runs, most))
    if next(runs, None) is not None:
        log.notes.problems.append(exceeded(path, "holds more runs", "log_runs"))
    notes.add(log.notes)
    return found


def read_rows(texts: Iterable[str], log: LogSoFar) -> None:
    """Read a log, whatever its format, without making runs of its rows.

    Args:
        texts: as for `read_log`.
        log: where the rows and the notes go.
    """
    if (rest := _read_whole(iter(texts), log)) is not None:
        read_lines(rest, log)


def _read_whole(texts: Iterator[str], log: LogSoFar) -> Iterator[str] | None:
    """Read a log that is one document or one table; the text where it is neither."""
    start = ""
    while len(start) < SNIFFED and (piece := next(texts, None)) is not None:
        start += piece
    head = start[:SNIFFED].lstrip()
    rest: Iterator[str] | None = chain((start,), texts)
    for one in (kind(log) for kind in formats(WholeFormat)):
        if rest is not None and one.begins(head):
            rest = one.read(log.until_full(rest) if one.grows else rest)
            log.notes.count(one.name, one.count)
    return rest


def read_lines(texts: Iterable[str], log: LogSoFar) -> None:
    """Read a log line by line."""
    reader = LineReader(log)
    numbered = lines(texts)
    with _uncollected():
        while batch := list(islice(numbered, LINES_BETWEEN)):
            reader.read(batch)
            if log.is_full():
                break
        reader.finish()


class LineReader:
    """Reads lines of a log, whichever format each of them has."""

    def __init__(self, log: LogSoFar) -> None:
        self._notes, self._alike = log.notes, log.alike
        self._width = current().line_characters
        self._formats = [kind(log) for kind in formats(LineFormat)]
        self._of_long = [one.read for one in self._formats if one.takes_long_lines]
        self._of_cut = [one.read for one in self._formats if not one.takes_long_lines]

    def read(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Read cleaned lines with their numbers (see `lines`)."""
        if self._alike.read_all(numbered):
            return
        read_like, ask, is_open = self._alike.read, self._ask, self._is_open
        for number, line in numbered:
            if line and not read_like(number, line) and (len(line) > SHORT or is_open()):
                ask(number, line)

    def _is_open(self) -> bool:
        return any(one.is_open for one in self._formats)

    def _ask(self, number: int, line: str) -> None:
        for read in self._of_long:
            if read(number, line):
                return
        line = line[: self._width]
        for read in self._of_cut:
            if read(number, line):
                return
        if _LOSS.search(line) and not _NO_REPORT.search(line):
            unread = self._notes.unread
            if len(unread) < MAX_UNREAD and (not unread or unread[-1] != number):
                unread.append(number)

    def catch_up(self) -> None:
        """Read what was put off; what is begun stays open."""
        for one in self._formats:
            one.catch_up()

    def finish(self) -> None:
        """Read the rest, and note how many lines of each format there were."""
        for one in self._formats:
            one.finish()
            self._notes.count(one.name, one.count)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for circles: rows of numbers form none, and are many to search."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
