"""Where evidence comes from: files, read-only, bounded, with their SHA-256."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxdoctor.errors import InputError

#: Text files larger than this are refused rather than read into memory (bytes).
MAX_TEXT_BYTES = 1 << 30
#: JSON configurations larger than this are refused (bytes).
MAX_JSON_BYTES = 64 << 20
#: Files larger than this are not hashed unless every byte is read anyway (bytes).
MAX_HASHED_BYTES = 512 << 20


@dataclass(frozen=True)
class Source:
    """A file that evidence was read from.

    Attributes:
        path: the file.
        sha256: of the whole file; None where only a part was read.
        note: what was read where it was not everything.
    """

    path: Path
    sha256: str | None
    note: str = ""


def require_file(path: Path) -> int:
    """The size of a regular file, in bytes.

    Raises:
        InputError: it does not exist, is not a regular file, or can't be read.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(path, "there is no such file", "check the path") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check its access") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(path, "is a folder where a file is needed", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(path, "is not a regular file", "devices and pipes are not read")
    return status.st_size


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> tuple[bytes, Source]:
    """The whole content of a file, and its source.

    Raises:
        InputError: as `require_file`, or the file is empty or over `limit` bytes.
    """
    size = require_file(path)
    if size == 0:
        raise InputError(path, "is empty", "it was probably not written to the end")
    if size > limit:
        raise InputError(path, f"has {size:,} bytes, more than the limit of {limit:,}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})", "check its access") from None
    return content, Source(path, hashlib.sha256(content).hexdigest())


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> tuple[str, Source]:
    """The text of a file (UTF-8, UTF-16 with a mark, or Latin-1), and its source.

    Raises:
        InputError: as `read_bytes`, or the file is binary.
    """
    content, source = read_bytes(path, limit)
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace"), source
    if b"\0" in content[:65536]:
        raise InputError(path, "is a binary file where text is needed")
    try:
        return content.decode("utf-8-sig"), source
    except UnicodeDecodeError:
        # A log cut in the middle of a character, or an old locale: the figures are ASCII.
        return content.decode("utf-8", errors="replace"), source


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> tuple[Any, Source]:
    """The value in a JSON file, and its source.

    Raises:
        InputError: as `read_text`, or it is not JSON.
    """
    text, source = read_text(path, limit)
    try:
        return json.loads(text), source
    except (ValueError, RecursionError) as error:
        raise InputError(
            path, f"is not valid JSON ({error})", "it may be cut off or another kind of file"
        ) from None


def read_json_object(path: Path, limit: int = MAX_JSON_BYTES) -> tuple[dict[str, Any], Source]:
    """The object in a JSON file, and its source.

    Raises:
        InputError: as `read_json`, or the value is not an object.
    """
    value, source = read_json(path, limit)
    if not isinstance(value, dict):
        raise InputError(path, f"holds a JSON {type(value).__name__} where an object is needed")
    return value, source


def hash_file(path: Path, limit: int = MAX_HASHED_BYTES) -> Source:
    """The source of a file that something else reads; hashed up to `limit` bytes.

    Raises:
        InputError: as `require_file`.
    """
    size = require_file(path)
    if size > limit:
        return Source(path, None, f"not hashed: {size:,} bytes")
    with path.open("rb") as stream:
        return Source(path, hashlib.file_digest(stream, "sha256").hexdigest())
