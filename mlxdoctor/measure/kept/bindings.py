"""The files that something was measured from: what they are to a run, and their hashes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.evidence.source import CHUNK_BYTES, open_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current

#: Fields of `RunFiles` with one file or folder, and what a person calls what is in them.
PARTS = {
    "adapter": "the adapter",
    "config": "the configuration",
    "settings": "the training configuration",
    "generations": "the recorded answers",
    "data": "the data",
    "tuned": "the tuned model",
    "base": "the base model",
}
#: For a file that is none of these: it lies in the run's folder, or nowhere that is known.
ELSEWHERE = "run"
#: Of a file over the limit `hashed_bytes`, so many blocks are hashed, of this size (bytes).
BLOCKS, BLOCK_BYTES = 64, 1 << 20


class Here(Enum):
    """How a file that something was measured from is on this machine."""

    SAME = "same"
    ABSENT = "absent"
    CHANGED = "changed"


@dataclass(frozen=True)
class BoundFile:
    """A file that something was measured from.

    Attributes:
        part: what it is to the run: a key of `PARTS`, or `ELSEWHERE`.
        name: its path below that.
        size: bytes.
        sha256: of the whole file, or of its size and `BLOCKS` blocks spread over it.
        whole: which of them.
    """

    part: str
    name: str
    size: int
    sha256: str
    whole: bool

    @property
    def words(self) -> str:
        """What it is, for a person."""
        return f"{self.name} ({PARTS[self.part]})" if self.part in PARTS else self.name

    def to_json(self) -> list[Any]:
        """As the file keeps it."""
        return [self.part, self.name, self.size, self.sha256, self.whole]

    @classmethod
    def from_json(cls, value: Any) -> BoundFile:
        """The reverse.

        Raises:
            ValueError: it is nothing of the kind.
        """
        match value:
            case [str(part), str(name), int(size), str(sha256), bool(whole)]:
                path = PurePosixPath(name)
                known = part in PARTS or part == ELSEWHERE
                if known and not path.is_absolute() and ".." not in path.parts and "\0" not in name:
                    return cls(part, name, size, sha256, whole)
        raise ValueError("a file is needed")


def named(files: Iterable[BoundFile]) -> list[str]:
    """Files for a person, those of one part together."""
    names: dict[str, list[str]] = {}
    for one in files:
        names.setdefault(one.part, []).append(one.name)
    return [
        f"{PARTS.get(part, 'the run')} ({found[0] if len(found) == 1 else f'{len(found)} files'})"
        for part, found in names.items()
    ]


@dataclass(frozen=True)
class Bindings:
    """The files of one run on this machine.

    Attributes:
        files: which file is what.
        known: what was found out, by file.
    """

    files: RunFiles
    known: dict[Any, Any] = field(default_factory=dict)

    def place(self, path: Path) -> tuple[str, str]:
        """What a file is to the run: a part, and its path below that."""
        target = _absolute(path)
        for part, start in self._parts():
            # The file itself goes before a folder that it lies in.
            if target == start:
                return part, target.name
        for part, start in self._parts():
            folder = _folder(start)
            if target.is_relative_to(folder):
                return part, target.relative_to(folder).as_posix()
        for root in self.files.roots:
            folder = _folder(_absolute(root))
            if target.is_relative_to(folder):
                return ELSEWHERE, target.relative_to(folder).as_posix()
        return ELSEWHERE, target.name

    def path(self, part: str, name: str) -> Path | None:
        """Where such a file is on this machine; None where it is not."""
        starts = self.files.roots if part == ELSEWHERE else (getattr(self.files, part),)
        for start in starts:
            if start is None:
                continue
            path: Path = start if start.name == name and start.is_file() else _folder(start) / name
            # A name that no file can have, of a file that another machine has written.
            with suppress(OSError):
                if path.is_file():
                    return path
        return None

    def bound(self, path: Path) -> BoundFile:
        """The file with its hash, as it is now.

        Raises:
            InputError: it can't be read.
        """
        part, name = self.place(path)
        size = path.stat().st_size
        whole = size <= current().hashed_bytes
        return BoundFile(part, name, size, self._sha256(path, whole), whole)

    def here(self, file: BoundFile) -> Here:
        """Whether this machine has the same file."""
        path = self.path(file.part, file.name)
        if path is None:
            return Here.ABSENT
        try:
            same = path.stat().st_size == file.size
            same = same and self._sha256(path, file.whole) == file.sha256
        except (OSError, InputError):
            return Here.ABSENT
        return Here.SAME if same else Here.CHANGED

    def _sha256(self, path: Path, whole: bool) -> str:
        stat = path.stat()
        key = path, stat.st_size, stat.st_mtime_ns, whole
        if key not in self.known:
            self.known[key] = _digest(path, whole)
        return str(self.known[key])

    def _parts(self) -> Iterator[tuple[str, Path]]:
        for part in PARTS:
            start: Path | None = getattr(self.files, part)
            if start is not None:
                yield part, _absolute(start)


def _absolute(path: Path) -> Path:
    # Links are not followed: a model in a cache consists of them.
    return Path(os.path.abspath(path))  # noqa: PTH100


def _folder(start: Path) -> Path:
    return start if start.is_dir() else start.parent


def _digest(path: Path, whole: bool) -> str:
    with open_file(path) as stream:
        if whole:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        size = os.fstat(stream.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for block in range(BLOCKS):
            stream.seek(block * max(size - BLOCK_BYTES, 0) // (BLOCKS - 1))
            left = BLOCK_BYTES
            while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
                digest.update(chunk)
                left -= len(chunk)
        return digest.hexdigest()
