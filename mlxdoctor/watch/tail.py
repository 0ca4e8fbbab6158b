"""The text that a training adds to its log: from a file that grows, or from standard input."""

from __future__ import annotations

import codecs
import os
import select
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from mlxdoctor.evidence.logs.text_stream import log_encoding, without_holes
from mlxdoctor.evidence.source import open_file, unreadable
from mlxdoctor.safety.reading_limits import current, exceeded

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


class Tail(ABC):
    """Where text comes from: bytes in, whole lines out."""

    def __init__(self) -> None:
        #: Whether no more text can come.
        self.is_closed = False
        self._begin()

    @property
    def is_missing(self) -> bool:
        """Whether there is nothing to read from yet."""
        return False

    @abstractmethod
    def read(self) -> Piece | None:
        """What was added since the last call, or None. Never waits for long."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait for more, at most so long."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is read from."""

    def _begin(self, encoding: str = "utf-8-sig") -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._open_line = ""
        self._is_dropping = False
        self._is_new = True

    def rest(self) -> str:
        """The last line, where it has no end."""
        rest, self._open_line = self._open_line, ""
        return rest

    def _piece(self, content: bytes) -> Piece | None:
        if self._encoding != "utf-16":
            content = without_holes(content)
        text = self._decoder.decode(content)
        if self._is_dropping:
            _, end, text = text.partition("\n")
            self._is_dropping = not end
        text = self._open_line + text
        # A carriage return at the end may be half of a line's end.
        cut = max(text.rfind("\n"), text.rfind("\r", 0, max(len(text) - 1, 0))) + 1
        whole, self._open_line = text[:cut], text[cut:]
        if len(self._open_line) > MAX_LINE:
            self._open_line, self._is_dropping = "", True
        if not whole:
            return None
        piece, self._is_new = Piece(whole, self._is_new), False
        return piece


class FileTail(Tail):
    """A file that grows, that may not be there yet, and that may be replaced or cut.

    Args:
        path: the file.
        since: seconds since the epoch: what was last written before is passed over.

    Raises:
        InputError: the path is a folder, a device or a pipe, or can't be read.
    """

    def __init__(self, path: Path, since: float | None = None) -> None:
        super().__init__()
        self._path = path
        self._stream: FileIO | None = None
        stream = self._open()
        if stream is not None and since is not None:
            status = os.fstat(stream.fileno())
            if status.st_mtime < since:
                stream.seek(status.st_size)

    @property
    def is_missing(self) -> bool:
        return self._stream is None

    def read(self) -> Piece | None:
        """The lines added since the last call, at most `READ_BYTES` of them."""
        stream = self._stream or self._open()
        if stream is None:
            return None
        if os.fstat(stream.fileno()).st_size < stream.tell():
            self._begin()
            stream.seek(0)
        content = stream.read(READ_BYTES)
        if not content:
            if self._is_replaced(stream):
                self.close()
                self._begin()
            return None
        if stream.tell() == len(content):
            self._begin(log_encoding(self._path, content))
        return self._piece(content) or self.read()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

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

    def _open(self) -> FileIO | None:
        try:
            self._path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(self._path, error) from None
        self._stream = open_file(self._path)
        size = os.fstat(self._stream.fileno()).st_size
        if size > current().log_bytes:
            raise exceeded(self._path, f"has {size:,} bytes", "log_bytes")
        return self._stream

    def _is_replaced(self, stream: FileIO) -> bool:
        mine = os.fstat(stream.fileno())
        try:
            now = self._path.stat()
        except OSError:
            # Moved away, and the new one is not there yet: the old one may still grow.
            return False
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino)


class PipeTail(Tail):
    """Standard input, or another pipe, until its writer closes it.

    Args:
        descriptor: of the pipe.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def read(self) -> Piece | None:
        """The lines that are there, without waiting for more."""
        while not self.is_closed and self._is_ready(0.0):
            content = os.read(self._descriptor, READ_BYTES)
            self.is_closed = not content
            if piece := self._piece(content):
                return piece
        return None

    def wait(self, seconds: float) -> None:
        self._is_ready(seconds)

    def close(self) -> None:
        """Nothing: the pipe is the caller's."""

    def _is_ready(self, seconds: float) -> bool:
        return bool(select.select([self._descriptor], [], [], seconds)[0])
