"""Where evidence comes from: files, read-only, bounded, with their SHA-256.

Here and wherever evidence is read, a file that can't be read, is over a limit or is not what it
should be raises an `InputError`.
"""

import codecs
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.json_text import parse_settings
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

#: Bytes of a streamed file that are held at a time.
CHUNK_BYTES = 1 << 20
#: How Git LFS begins what it leaves in a file's place, and bytes that such a pointer has at most.
POINTER, POINTER_BYTES = b"version https://git-lfs", 1024
#: Bytes read of a file, at its beginning or at either end, to tell what it is.
SNIFF_BYTES = 1 << 16
#: How the note on a text begins that has a mark of its encoding, which Python's JSON refuses.
MARKED = "begins with a mark of"
#: How a text in UTF-16 begins.
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Source:
    """A file that evidence was read from.

    Attributes:
        sha256: of the whole file; None where only a part was read.
        note: what was read where it was not everything.
    """

    path: Path
    sha256: str | None
    note: str = ""


def unreadable(path: Path, error: OSError | ValueError) -> InputError:
    """What the system says of a file, or Python of its name, as a sentence."""
    if isinstance(error, ValueError):
        return InputError(None, f"{str(path)!r} is no name that a file can have")
    if isinstance(error, FileNotFoundError):
        return InputError(path, "there is no such file", "check the path")
    return InputError(path, f"cannot be read ({error.strerror})", "check its access")


def require_file(path: Path) -> int:
    """The size of a regular file, in bytes.

    Raises:
        InputError: it does not exist, is not a regular file, or can't be read.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(path, "is a folder where a file is needed", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, "is not a regular file", "devices and pipes are not read")
    return status.st_size


@contextmanager
def open_file(path: Path) -> Iterator[FileIO]:
    """A regular file, open for reading without buffer; a pipe or device never blocks this.

    Raises:
        InputError: as `require_file`, Git LFS has not fetched it, or the system refuses to read it.
    """
    try:
        require_file(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        # Asked of the open file: the name may lead elsewhere by now.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(path, "is not a regular file", "devices and pipes are not read")
        if status.st_size <= POINTER_BYTES and os.pread(descriptor, len(POINTER), 0) == POINTER:
            remedy = "fetch what it stands for with `git lfs pull`"
            raise InputError(path, "is a pointer of Git LFS, and not the file itself", remedy)
        yield FileIO(descriptor, "rb", closefd=False)
    except OSError as error:
        raise unreadable(path, error) from None
    finally:
        os.close(descriptor)


def read_bytes(path: Path, limit: str = "text_bytes") -> tuple[bytes, Source]:
    """The whole content of a file, and its source.

    Args:
        limit: the name of the limit on its size.

    Raises:
        InputError: as `require_file`, or the file is empty or over the limit.
    """
    chunks = list(stream_bytes(path, limit))
    content = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return content, Source(path, hashlib.sha256(content).hexdigest())


def stream_bytes(path: Path, limit: str) -> Iterator[bytes]:
    """The content of a file in pieces: the bytes it has when it is opened.

    A file that grows meanwhile, as the log of a training does, is read to where it ended.

    Raises:
        InputError: as `read_bytes`, or the file shrinks meanwhile.
    """
    most: int = getattr(current(), limit)
    with open_file(path) as stream:
        left = require_content(path, stream)
        if left > most:
            raise exceeded(path, f"has {left:,} bytes", limit)
        while left:
            chunk = stream.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise InputError(path, "became shorter while it was being read", "try again")
            left -= len(chunk)
            yield chunk


def require_content(path: Path, stream: FileIO) -> int:
    """The size of an open file, in bytes.

    Raises:
        InputError: it is empty.
    """
    size = os.fstat(stream.fileno()).st_size
    if size == 0:
        raise InputError(path, "is empty", "it was probably not written to the end")
    return size


def text_encoding(path: Path, head: bytes) -> str:
    """The encoding of a text that begins with `head`: UTF-16 with a mark, or UTF-8.

    Raises:
        InputError: it is no text.
    """
    if head[:2] in UTF16_MARKS:
        return "utf-16"
    if b"\0" in head[:65536]:
        raise InputError(path, "is a binary file where text is needed")
    return "utf-8-sig"


def read_text(path: Path, limit: str = "text_bytes") -> tuple[str, Source]:
    """The text of a file (UTF-8, or UTF-16 with a mark), and its source.

    Bytes that are neither are replaced: an old locale, or a cut in the middle of a character.

    Raises:
        InputError: as `read_bytes`, or the file is binary.
    """
    content, source = read_bytes(path, limit)
    if content[:2] in UTF16_MARKS or content.startswith(codecs.BOM_UTF8):
        name = "UTF-16" if content[:2] in UTF16_MARKS else "UTF-8"
        source = replace(source, note=f"{MARKED} {name}")
    return content.decode(text_encoding(path, content), errors="replace"), source


def read_json_object(path: Path) -> tuple[dict[str, Any], Source]:
    """The object in a JSON file, and its source.

    Raises:
        InputError: as `read_text`, or it is not JSON, or is nested too deeply, or a key is
            there twice with different values, or the value is not an object.
    """
    text, source = read_text(path, "json_bytes")
    value = parse_settings(path, text)
    if not isinstance(value, dict):
        raise InputError(path, f"holds a JSON {type(value).__name__} where an object is needed")
    return value, source


def hash_file(path: Path) -> Source:
    """The source of a file that something else reads; not hashed above a limit.

    Raises:
        InputError: as `require_file`.
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > current().hashed_bytes:
            return Source(path, None, f"not hashed: {size:,} bytes")
        return Source(path, hashlib.file_digest(stream, "sha256").hexdigest())


@dataclass(frozen=True)
class Sniffed:
    """A file, for a kind of evidence to say whether it is of that kind."""

    path: Path

    @cached_property
    def head(self) -> str:
        """The text it begins with; empty where it can't be read."""
        with suppress(InputError), open_file(self.path) as stream:
            return stream.read(SNIFF_BYTES).decode("utf-8-sig", errors="replace")
        return ""

    @cached_property
    def record(self) -> Mapping[str, Any]:
        """The first object of a .json or .jsonl file, itself or in a list; empty without one."""
        if self.path.suffix not in (".json", ".jsonl"):
            return {}
        try:
            value, _ = json.JSONDecoder().raw_decode(self.head.lstrip())
        except (ValueError, RecursionError):
            return {}
        if isinstance(value, list) and value:
            value = value[0]
        return value if isinstance(value, dict) else {}
