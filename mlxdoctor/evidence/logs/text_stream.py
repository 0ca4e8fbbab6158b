"""The text of a log, read in pieces: its lines, and the numbers in them."""

import codecs
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mlxdoctor.evidence.source import Source, stream_bytes, text_encoding
from mlxdoctor.safety.reading_limits import current

#: A longer line is no row of metrics (characters).
MAX_RECORD = 1 << 20
#: CSI, OSC (ended by BEL or ST) and two-character escapes; an unended one stays in its line.
_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b[ -/]?[0-Z\\^-~]|\x9b[0-?]{0,64}[@-~]"
)

#: A number as trainers print it: thousands may be separated, nan and inf are numbers.
NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?:nan|NaN|NAN|inf|Inf|INF)(?:inity)?(?![A-Za-z]))"
)


#: What stands behind a number for a power of ten.
_POWERS = {"k": "e3", "K": "e3", "m": "e6", "M": "e6", "%": ""}


def to_number(text: str) -> float | None:
    """The number a text is, or None. `14,561`, `3.3k`, `NaN` and `Infinity` are numbers."""
    text = text.strip(" \t'\"").replace(",", "")
    if (power := _POWERS.get(text[-1:])) is not None:
        text = text[:-1] + power
    try:
        value = float(text)
    except ValueError:
        return None
    # Python reads 1_000 as a number; no log writes that.
    return None if "_" in text else value


def is_count(value: float) -> bool:
    """Whether a number can be a count of updates."""
    return math.isfinite(value) and value >= 0 and value == math.floor(value)


def lines(texts: Iterable[str], most: int) -> Iterator[tuple[Sequence[int], list[str]]]:
    """Line numbers from 1, and the lines without terminal control sequences, so many at a time.

    A line that a progress bar overwrote (`\\r`) is several with one number.

    Args:
        texts: pieces of the log that each end where a line or a rewriting of it ends.
    """
    number = 1
    for text in texts:
        has_escapes = "\x1b" in text or "\x9b" in text
        pieces = (_ESCAPE.sub("", text) if has_escapes else text).split("\n")
        ended = len(pieces) - 1
        if not pieces[-1]:
            pieces.pop()
        numbers: Sequence[int] = range(number, number + len(pieces))
        if "\r" in text:
            parts = [piece.split("\r") for piece in pieces]
            rewritten = zip(numbers, parts, strict=True)
            numbers = [offset for offset, split in rewritten for part in split if part]
            pieces = [part for split in parts for part in split if part]
        for begin in range(0, len(pieces), most):
            yield numbers[begin : begin + most], pieces[begin : begin + most]
        number += ended


class LogStream:
    """A log file, read once from its beginning to its end.

    A line that is longer than anything a trainer writes is cut, and `source` says so.

    Raises:
        InputError: while it is read: the file can't be read, is binary, or is over the limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = hashlib.sha256()
        self._cut: list[int] = []
        self._is_read = False

    def __iter__(self) -> Iterator[str]:
        most = max(current().line_characters, MAX_RECORD)
        decoder: codecs.IncrementalDecoder | None = None
        line, held = 1, ""
        for content in stream_bytes(self.path, "log_bytes"):
            self._hash.update(content)
            if decoder is None:
                encoding = text_encoding(self.path, content)
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            text = held + decoder.decode(content)
            # A progress bar that rewrites its line ends it each time; a `\r` at the very end may
            # be the first half of a line end.
            end = max(text.rfind("\n"), text.rfind("\r", 0, max(len(text) - 1, 0))) + 1
            piece, held = text[:end], text[end:]
            line += piece.count("\n")
            if piece:
                yield piece
            if len(held) > most:
                # What is kept of it is joined to where it ends.
                held = held[:most]
                if line not in self._cut[-1:]:
                    self._cut.append(line)
        if decoder is not None:
            held += decoder.decode(b"", final=True)
        if held:
            yield held
        self._is_read = True

    @property
    def source(self) -> Source:
        """The file, its hash if it was read to its end, and which lines were cut."""
        notes = [] if self._is_read else ["not read to its end"]
        if self._cut:
            more = f" and {len(self._cut) - 1} more" if len(self._cut) > 1 else ""
            cut = f"line {self._cut[0]:,}{more} cut to {MAX_RECORD:,} characters"
            notes.append(f"{cut} (limit line_characters)")
        digest = self._hash.hexdigest() if self._is_read else None
        return Source(self.path, digest, "; ".join(notes))
