"""The text of a log, read in pieces: its lines, and the numbers in them."""

from __future__ import annotations

import codecs
import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlxdoctor.evidence.source import UTF16_MARKS, Source, link_note, stream_bytes, text_encoding
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

#: A longer line is no row of metrics (characters).
MAX_RECORD = 1 << 20
#: Characters that are cleaned at a time, so that memory stays near the file's size.
CHUNK = 4 << 20
#: How many characters of a text may be such as no text has, of all.
MAX_NO_TEXT = 0.02
_NO_TEXT = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
#: A hole in a log: what a file that was emptied while it was written has before its next line.
_HOLE = re.compile(rb"\0{4,}")
#: CSI, OSC (ended by BEL or ST) and two-character escapes; an unended one stays in its line.
_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b[ -/]?[0-Z\\^-~]|\x9b[0-?]{0,64}[@-~]"
)
_PLAIN_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

#: A number as trainers print it: thousands may be separated, nan and inf are numbers.
NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?:nan|NaN|NAN|inf|Inf|INF)(?:inity)?(?![A-Za-z]))"
)


def to_number(text: str) -> float | None:
    """The number a text is, or None. `14,561`, `3.3k`, `NaN` and `Infinity` are numbers."""
    text = text.strip().strip("'\"")
    scale = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "%": 1.0}.get(text[-1:], 0.0)
    if scale:
        text = text[:-1]
    try:
        value = float(text.replace(",", "")) * (scale or 1.0)
    except ValueError:
        return None
    # Python reads 1_000 as a number; no log writes that.
    return None if "_" in text else value


def is_count(value: float) -> bool:
    """Whether a number can be a count of updates."""
    return math.isfinite(value) and value >= 0 and value == math.floor(value)


def strip_escapes(text: str) -> str:
    """The text without terminal control sequences."""
    if "\x1b" not in text and "\x9b" not in text:
        return text
    # A coloured table repeats a handful of codes: replacing each is 5 times faster
    # than matching a pattern half a million times.
    for code in sorted(set(_PLAIN_COLOUR.findall(text[:65_536])), key=len, reverse=True)[:32]:
        text = text.replace(code, "")
    return _ESCAPE.sub("", text) if "\x1b" in text or "\x9b" in text else text


def lines(texts: str | Iterable[str]) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and the cleaned pieces of each line.

    A line that a progress bar overwrote (`\\r`) yields its pieces one by one.

    Args:
        texts: the log, or pieces of it that each end where a line or a rewriting of it ends.
    """
    number = 1
    for text in (texts,) if isinstance(texts, str) else texts:
        for chunk in _chunks(text):
            pieces = strip_escapes(chunk).split("\n")
            ended = len(pieces) - 1
            if not pieces[-1]:
                pieces.pop()
            if "\r" not in chunk:
                yield from enumerate(pieces, number)
            else:
                for offset, piece in enumerate(pieces, number):
                    for part in piece.split("\r"):
                        if part:
                            yield offset, part
            number += ended


def _chunks(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        end = text.find("\n", position + CHUNK) + 1 or len(text)
        yield text[position:end]
        position = end


def without_holes(content: bytes) -> bytes:
    """The content without bytes that are zero, a run of which ends a line."""
    if b"\0" not in content:
        return content
    # A carriage return ends what is there, and does not count as a line.
    return _HOLE.sub(b"\r", content).replace(b"\0", b"")


def log_encoding(path: Path, head: bytes) -> str:
    """The encoding of a log that begins with `head`; bytes that are zero may be in it.

    Raises:
        InputError: it is no text.
    """
    sample = head[:65536]
    if b"\0" in sample and sample[:2] not in UTF16_MARKS:
        filled = sample.replace(b"\0", b"")
        if len(_NO_TEXT.findall(filled)) > MAX_NO_TEXT * len(filled):
            raise InputError(path, "is a binary file where text is needed")
        return "utf-8-sig"
    return text_encoding(path, sample)


def whole_lines(text: str) -> tuple[str, str]:
    """The text up to its last line end, and the rest.

    A progress bar that rewrites its line ends it each time; a `\\r` at the very end
    may be the first half of a line end.
    """
    end = max(text.rfind("\n"), text.rfind("\r", 0, max(len(text) - 1, 0))) + 1
    return text[:end], text[end:]


class LogStream:
    """A log file, read once from its beginning to its end.

    A line that is longer than anything a trainer writes is cut, and `source` says so.

    Raises:
        InputError: while it is read: the file can't be read, is binary, or is over the limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = hashlib.sha256()
        self._most = max(current().line_characters, MAX_RECORD)
        self._line = 1
        self._cut: list[int] = []
        self._zeros = 0
        self._is_read = False

    def __iter__(self) -> Iterator[str]:
        decoder: codecs.IncrementalDecoder | None = None
        encoding = held = ""
        skipping = False
        for content in stream_bytes(self.path, "log_bytes"):
            self._hash.update(content)
            if decoder is None:
                encoding = log_encoding(self.path, content)
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            chunk = content
            if encoding != "utf-16":
                self._zeros += content.count(b"\0")
                chunk = without_holes(content)
            text = decoder.decode(chunk)
            if skipping:
                _, line_end, text = text.partition("\n")
                if not line_end:
                    continue
                # The cut line's own end: what was kept of it is a line by itself.
                held, skipping = "\n", False
            piece, held = whole_lines(held + text)
            if piece:
                self._line += piece.count("\n")
                yield piece
            if len(held) > self._most:
                self._cut.append(self._line)
                yield held[: self._most]
                held, skipping = "", True
        if decoder is not None and not skipping:
            held += decoder.decode(b"", final=True)
        if held:
            yield held
        self._is_read = True

    @property
    def source(self) -> Source:
        """The file, its hash if it was read to its end, and which lines were cut."""
        notes = [link_note(self.path), "" if self._is_read else "not read to its end"]
        if self._cut:
            more = f" and {len(self._cut) - 1} more" if len(self._cut) > 1 else ""
            notes.append(
                f"line {self._cut[0]:,}{more} cut to {self._most:,} characters "
                "(limit line_characters)"
            )
        if self._zeros:
            notes.append(f"{self._zeros:,} bytes of it are zero and were passed over")
        digest = self._hash.hexdigest() if self._is_read else None
        return Source(self.path, digest, "; ".join(filter(None, notes)))
