"""The text of a log in pieces that end where a line does, whatever the file's size."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from mlxdoctor.evidence.source import UTF16_MARKS, Source, link_note, stream_bytes, text_encoding
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

#: A longer line is no row of metrics (characters).
MAX_RECORD = 1 << 20


#: A hole in a log: what a file that was emptied while it was written has before its next line.
_HOLE = re.compile(rb"\0{4,}")
#: Characters of which a text has none, or a few at most.
_NO_TEXT = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f]")
#: How many of them a text may have, of all.
MAX_NO_TEXT = 0.02


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
            chunk = content
            if decoder is None:
                encoding = log_encoding(self.path, chunk)
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            if encoding != "utf-16" and b"\0" in chunk:
                self._zeros += chunk.count(b"\0")
                chunk = without_holes(chunk)
            text = decoder.decode(chunk)
            if skipping:
                _, found, text = text.partition("\n")
                if not found:
                    continue
                # The cut line's own end: what was kept of it is a line by itself.
                held, skipping = "\n", False
            piece, held = _whole_lines(held + text)
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


def _whole_lines(text: str) -> tuple[str, str]:
    """The text up to its last line end, and the rest.

    A progress bar that rewrites its line ends it each time; a `\\r` at the very end
    may be the first half of a line end.
    """
    end = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
    return text[:end], text[end:]
