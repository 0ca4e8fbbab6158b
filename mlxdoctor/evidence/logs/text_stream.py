"""The text of a log in pieces that end where a line does, whatever the file's size."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

from mlxdoctor.evidence.source import Source, link_note, stream_bytes, text_encoding
from mlxdoctor.safety.reading_limits import current

#: A longer line is no row of metrics (characters).
MAX_RECORD = 1 << 20


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
        self._is_read = False

    def __iter__(self) -> Iterator[str]:
        decoder: codecs.IncrementalDecoder | None = None
        held = ""
        skipping = False
        for chunk in stream_bytes(self.path, "log_bytes"):
            self._hash.update(chunk)
            if decoder is None:
                encoding = text_encoding(self.path, chunk)
                decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
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
        digest = self._hash.hexdigest() if self._is_read else None
        return Source(self.path, digest, "; ".join(filter(None, notes)))


def _whole_lines(text: str) -> tuple[str, str]:
    """The text up to its last line end, and the rest.

    A progress bar that rewrites its line ends it each time; a `\\r` at the very end
    may be the first half of a line end.
    """
    end = max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
    return text[:end], text[end:]
