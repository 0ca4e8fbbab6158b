"""Python sources that lie beside a run: read, never run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.safety.errors import InputError

#: Files that are looked at; a run's folder has a handful.
MAX_FILES = 20
#: Characters of a file: a trainer has under 200 kB.
MAX_CHARACTERS = 200_000
_USES_MLX = re.compile(r"^\s*(?:import|from)\s+mlx", re.MULTILINE)
_NO_TRAINER = re.compile(r"^(?:test_.*|.*_test|conftest|setup)$")


@dataclass(frozen=True)
class SourcesBeside:
    """The Python files in a run's folder, or among the paths named, that use MLX.

    Attributes:
        sources: the files.
    """

    kind: ClassVar[str] = "Python sources"

    sources: tuple[Source, ...]

    @classmethod
    def find(cls, run: RunView) -> SourcesBeside:
        """The files, as far down as a run's folder is looked through; see `Evidence`."""
        named = [path for path in run.files.unrecognised if path.suffix == ".py"]
        sources = [source for path in named[:MAX_FILES] if (source := _trainer(path)) is not None]
        if not sources:
            raise NotThere("no Python source that uses MLX lies beside the run")
        return cls(tuple(sources))


def _trainer(path: Path) -> Source | None:
    """The file as a source; None where it is none of MLX, too long, or a test."""
    if _NO_TRAINER.match(path.stem):
        return None
    try:
        text, source = read_text(path, "source_bytes")
    except InputError:
        # Nobody named this file: one that can't be read is none of the evidence.
        return None
    return source if len(text) <= MAX_CHARACTERS and _USES_MLX.search(text) else None
