"""One log, whatever its format: its rows and notes, from a text that comes in pieces."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.log_formats.documents import is_document, read_document
from mlxdoctor.evidence.log_formats.line_readers import LineReaders
from mlxdoctor.evidence.log_formats.segments import Rows
from mlxdoctor.evidence.log_formats.series import Notes, Segment
from mlxdoctor.evidence.log_formats.tables import csv_header, read_csv
from mlxdoctor.evidence.log_formats.text import lines
from mlxdoctor.safety.reading_limits import ReadingLimits, current, exceeded

#: Characters at the beginning of a log that decide of which kind it is.
SNIFFED = 64 << 10
#: Lines between two looks at how much was collected.
LINES_BETWEEN = 4096


def read_log(texts: Iterable[str], path: Path, notes: Notes) -> list[Segment]:
    """The runs in a log; what it says beside them is added to `notes`.

    Args:
        texts: its text in pieces, each ending where a line ends.
        path: its name: a TensorBoard download is named after what it holds.
    """
    rows = Rows()
    local = Notes()
    pieces = iter(texts)
    start = ""
    while len(start) < SNIFFED and (piece := next(pieces, None)) is not None:
        start += piece
    name, pieces = _read_whole(start, pieces, path, rows, local)
    if name:
        notes.formats[name] = notes.formats.get(name, 0) + len(rows)
    else:
        read_lines(pieces, rows, local, path)
    segments = rows.segments(local.run_marks, local.announced)
    found = _at_most(segments, current().log_runs, path, local)
    for family, count in local.formats.items():
        notes.formats[family] = notes.formats.get(family, 0) + count
    _merge(notes, local)
    return found


def _at_most(segments: Iterator[Segment], most: int, path: Path, notes: Notes) -> list[Segment]:
    found: list[Segment] = []
    for one in segments:
        if len(found) == most:
            notes.problems.append(exceeded(path, "holds more runs", "log_runs"))
            break
        found.append(one)
    return found


def _read_whole(
    start: str, rest: Iterator[str], path: Path, rows: Rows, notes: Notes
) -> tuple[str, Iterator[str]]:
    """Read a log that is one document or one table.

    Returns:
        The family's name, or "" where it is neither; and the text, to be read by lines then.
    """
    head = start[:SNIFFED].lstrip()
    if head[:1] in ("{", "[") and not _many_objects(head):
        parts, length = [start], len(start)
        for piece in rest:
            parts.append(piece)
            length += len(piece)
            if length > current().json_bytes:
                return "", chain(parts, rest)
        try:
            value: Any = json.loads("".join(parts))
        except (ValueError, RecursionError):
            value = None
        if is_document(value):
            read_document(value, rows)
            return ("JSON history" if len(rows) else ""), iter(parts)
        start, rest = "".join(parts), iter(())
    if csv_header(head.splitlines()[:20]) is not None:
        limits = current()
        table = (line for piece in chain((start,), rest) for line in piece.splitlines())

        def bounded() -> Iterator[str]:
            for number, line in enumerate(table):
                if number % LINES_BETWEEN == 0 and _is_full(rows, notes, limits, path):
                    return
                yield line

        read_csv(bounded(), path, rows)
        return ("CSV" if len(rows) else ""), iter(())
    return "", chain((start,), rest)


def _many_objects(start: str) -> bool:
    first, _, rest = start.partition("\n")
    return first.rstrip().endswith("}") and rest.lstrip().startswith("{")


def _is_full(rows: Rows, notes: Notes, limits: ReadingLimits, path: Path) -> bool:
    """Whether a limit is reached, after which nothing more is collected; noted as a problem."""
    rows.compact()
    if len(rows) + notes.size > limits.log_rows:
        notes.problems.append(exceeded(path, "holds more reports", "log_rows"))
    elif rows.forms > limits.log_forms:
        notes.problems.append(exceeded(path, "holds more kinds of report", "log_forms"))
    else:
        return False
    return True


def read_lines(texts: Iterable[str], rows: Rows, notes: Notes, path: Path) -> None:
    """Read a log line by line."""
    limits = current()
    readers = LineReaders(rows, notes)
    numbered = lines(texts)
    with _uncollected():
        while batch := list(islice(numbered, LINES_BETWEEN)):
            readers.read(batch)
            if _is_full(rows, notes, limits, path):
                break
        readers.finish()


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


def _merge(notes: Notes, local: Notes) -> None:
    """Add one file's notes to those of the files before it."""
    notes.header.update(local.header)
    notes.versions.update(local.versions)
    notes.saves.extend(local.saves)
    notes.truncations.extend(local.truncations)
    notes.failures.extend(local.failures)
    notes.problems.extend(local.problems)
    notes.trainable = local.trainable or notes.trainable
    if local.test_loss is not None:
        notes.test_loss, notes.test_perplexity = local.test_loss, local.test_perplexity
