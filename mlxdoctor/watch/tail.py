"""The text that a training adds to its log: from a file that grows, or from standard input."""

from __future__ import annotations

import codecs
import os
import select
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from mlxdoctor.evidence.source import open_file, text_encoding, unreadable

#: Bytes read at a time: a log of gigabytes is caught up with in pieces.
READ_BYTES = 4 << 20
#: A line that is longer is no report, and is dropped (characters).
MAX_LINE = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Whole lines that were added.

    Attributes:
        text: the lines; a part that a progress bar overwrote ends in a carriage return.
        is_new: whether they are the first of a file: the log began, or was replaced or cut.
    """

    text: str
    is_new: bool = False


class Tail(Protocol):
    """Where text comes from."""

    @property
    def is_missing(self) -> bool:
        """Whether there is nothing to read from yet."""

    @property
    def is_closed(self) -> bool:
        """Whether no more text can come."""

    def read(self) -> Piece | None:
        """What was added since the last call, or None. Never waits for long."""

    def wait(self, seconds: float) -> None:
        """Wait for more, at most so long."""

    def rest(self) -> str:
        """The last line, where it has no end."""

    def close(self) -> None:
        """Let go of the file."""


class _Lines:
    """Bytes in, whole lines out."""

    def __init__(self, encoding: str = "utf-8-sig") -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._open = ""
        self._is_dropping = False

    def add(self, content: bytes) -> str:
        text = self._decoder.decode(content)
        if self._is_dropping:
            _, end, text = text.partition("\n")
            self._is_dropping = not end
        text = self._open + text
        # A carriage return at the end may be half of a line's end.
        cut = max(text.rfind("\n"), text.rfind("\r", 0, max(len(text) - 1, 0))) + 1
        whole, self._open = text[:cut], text[cut:]
        if len(self._open) > MAX_LINE:
            self._open, self._is_dropping = "", True
        return whole

    def rest(self) -> str:
        rest, self._open = self._open, ""
        return rest


class FileTail:
    """A file that grows, that may not be there yet, and that may be replaced or cut.

    Args:
        path: the file.
        since: seconds since the epoch: what was last written before is passed over.

    Raises:
        InputError: the path is a folder, a device or a pipe, or can't be read.
    """

    def __init__(self, path: Path, since: float | None = None) -> None:
        self._path = path
        self._stream: FileIO | None = None
        self._lines = _Lines()
        self._is_new = True
        self._open()
        if self._stream is not None and since is not None:
            status = os.fstat(self._stream.fileno())
            if status.st_mtime < since:
                self._stream.seek(status.st_size)

    @property
    def is_missing(self) -> bool:
        return self._stream is None

    @property
    def is_closed(self) -> bool:
        return False

    def read(self) -> Piece | None:
        """The lines added since the last call, at most `READ_BYTES` of them."""
        if self._stream is None and not self._open():
            return None
        assert self._stream is not None
        if os.fstat(self._stream.fileno()).st_size < self._stream.tell():
            self._begin()
            self._stream.seek(0)
        content = self._stream.read(READ_BYTES)
        if not content:
            if self._is_replaced():
                self.close()
                self._begin()
            return None
        if self._stream.tell() == len(content):
            self._lines = _Lines(text_encoding(self._path, content))
        text = self._lines.add(content)
        piece = Piece(text, self._is_new)
        if not text:
            return self.read()
        self._is_new = False
        return piece

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def rest(self) -> str:
        return self._lines.rest()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def changed(self) -> tuple[int, int] | None:
        """Modification time and size; they change when the file is written."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _begin(self) -> None:
        self._lines, self._is_new = _Lines(), True

    def _open(self) -> bool:
        try:
            self._path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unreadable(self._path, error) from None
        self._stream = open_file(self._path)
        return True

    def _is_replaced(self) -> bool:
        assert self._stream is not None
        mine = os.fstat(self._stream.fileno())
        try:
            now = self._path.stat()
        except OSError:
            # Moved away, and the new one is not there yet: the old one may still grow.
            return False
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino)


class PipeTail:
    """Standard input, or another pipe, until its writer closes it.

    Args:
        descriptor: of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines = _Lines()
        self._is_new = True
        self._is_closed = False

    @property
    def is_missing(self) -> bool:
        return False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def read(self) -> Piece | None:
        """The lines that are there, without waiting for more."""
        while not self._is_closed and self._is_ready(0.0):
            content = os.read(self._descriptor, READ_BYTES)
            self._is_closed = not content
            text = self._lines.add(content)
            if text:
                piece = Piece(text, self._is_new)
                self._is_new = False
                return piece
        return None

    def wait(self, seconds: float) -> None:
        self._is_ready(seconds)

    def close(self) -> None:
        """Nothing: the pipe is the caller's."""

    def rest(self) -> str:
        return self._lines.rest()

    def _is_ready(self, seconds: float) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])
