"""One log, whatever its format: its runs and notes, from a text that comes in pieces."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.logs.log_format import DocumentFormat, LineFormat, LogSoFar, formats
from mlxdoctor.evidence.logs.runs import segments
from mlxdoctor.evidence.logs.series import Notes, Segment
from mlxdoctor.evidence.logs.text_stream import NUMBER, lines
from mlxdoctor.evidence.source import CHUNK_BYTES
from mlxdoctor.safety.reading_limits import current, exceeded

#: What a line of figures on a loss looks like, whatever else is in it; or of one that is none.
_LOSS = re.compile(
    rf"\bloss(?:es)?\b['\"]?\s{{0,4}}[:=~|]{{0,2}}\s{{0,4}}{NUMBER}"
    r"|\w\s?[=:~]\s{0,3}[-+]?(?:nan|inf)\b",
    re.IGNORECASE,
)
_NO_REPORT = re.compile(
    r"\b(?:best|final|min|lowest|average|avg|initial|summary|test|scale|target|threshold|skipp?(?:ed|ing)"
    r"|improved|last|total|non-finite)\b",
    re.IGNORECASE,
)
#: Lines between two looks at how much was collected.
LINES_BETWEEN = 4096
#: Lines that could not be read, of which the numbers are kept.
MAX_UNREAD = 1000


def read_log(texts: Iterable[str], path: Path) -> tuple[list[Segment], Notes]:
    """The runs in a log, and what it says beside them.

    Args:
        texts: its text in pieces, each ending where a line ends.
        path: its name.
    """
    log = LogSoFar(path)
    read_rows(texts, log)
    most = current().log_runs
    runs = list(islice(segments(log), most + 1))
    if len(runs) > most:
        log.notes.problems.append(exceeded(path, "holds more runs", "log_runs"))
    return runs[:most], log.notes


def read_rows(texts: Iterable[str], log: LogSoFar) -> None:
    """Read a log, its text given as to `read_log`, without making runs of its rows."""
    pieces = iter(texts)
    head = next(pieces, "")
    rest: Iterator[str] = chain([head], pieces)
    first, _, second = head.lstrip().partition("\n")
    # Not where each line is an object.
    has_lines = first.rstrip().endswith("}") and second.lstrip().startswith("{")
    if first[:1] in ("{", "[") and not has_lines:
        held = list(islice(rest, current().json_bytes // CHUNK_BYTES))
        inner = read_document("".join(held), log)
        rest = chain(held, rest) if inner is None else iter((inner,))
    read_lines(rest, log)


def read_document(text: str, log: LogSoFar) -> str | None:
    """Read a log that is one JSON document.

    Returns:
        None where it is none of a known format; else the text in it that is a log of lines.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for kind in formats(DocumentFormat):
        reader: DocumentFormat = kind(log)
        inner = reader.guarded(reader.read, document)
        if inner is not None:
            reader.note_count()
            return inner
    return None


def read_lines(texts: Iterable[str], log: LogSoFar) -> None:
    """Read a log line by line, whichever format each line has."""
    readers = [kind(log) for kind in formats(LineFormat)]
    width, unread = current().line_characters, log.notes.unread
    for numbers, batch in lines(texts, LINES_BETWEEN):
        for number, line in log.unlike(numbers, batch):
            if not line:
                continue
            # A record with texts in it may be longer than any line that is printed.
            text = line if line.startswith('{"') else line[:width]
            if any(reader.guarded(reader.read, number, text) for reader in readers):
                continue
            is_report = _LOSS.search(text[:width]) and not _NO_REPORT.search(text[:width])
            if is_report and len(unread) < MAX_UNREAD and unread[-1:] != [number]:
                unread.append(number)
        if log.is_full():
            break
    for reader in readers:
        reader.guarded(reader.finish)
        reader.note_count()
