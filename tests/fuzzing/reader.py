"""What a reader is, for the fuzzing: a function of bytes that refuses with `InputError` alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.config import Setting
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        name: what the report and the corpus call it.
        file: the name under which the bytes are stored in the folder.
        read: reads the folder, everything in it; raises `InputError` or a refusal.
        seeds: sound inputs to start from.
        around: name -> content of the other files that the folder holds.
        refusals: exceptions that its documentation promises.
        tokens: texts that its format is made of, for mutations.
    """

    name: str
    file: str
    read: Callable[[Path], object]
    seeds: Callable[[], Sequence[bytes]]
    around: Callable[[], dict[str, bytes]] = dict
    refusals: tuple[type[Exception], ...] = (InputError,)
    tokens: tuple[str, ...] = ()

    def prepare(self, folder: Path) -> None:
        """Make the folder, with every file but the one that varies."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.around().items():
            (folder / name).write_bytes(content)

    def feed(self, content: bytes, folder: Path) -> bool:
        """Read `content` in a prepared folder; whether it was accepted.

        Raises:
            Exception: anything but a refusal, which is a fault in the reader.
        """
        (folder / self.file).write_bytes(content)
        try:
            self.read(folder)
        except self.refusals:
            return False
        return True


def touch(value: Any) -> None:
    """Ask a piece of evidence for each of its properties; what can't be told may be refused."""
    for name in _properties(type(value)):
        try:
            getattr(value, name)
        except InputError:
            continue


@cache
def _properties(kind: type[Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, attribute in inspect.getmembers_static(kind)
        if isinstance(attribute, property | cached_property | Setting) and not name.startswith("_")
    )
