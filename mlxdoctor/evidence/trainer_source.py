"""The source file of a user's own trainer, and the known mistakes in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.source import Source
from mlxdoctor.lint.linter import Hit, lint


@dataclass(frozen=True)
class TrainerSource:
    """What the linter says of the file that a trainer was named in.

    Attributes:
        sources: the file.
        hits: places in it.
    """

    kind: ClassVar[str] = "trainer source"

    sources: tuple[Source, ...]
    hits: tuple[Hit, ...]

    @classmethod
    def read(cls, sources: tuple[Source, ...]) -> TrainerSource:
        """Look at the files; nothing is imported or run.

        Raises:
            InputError: a file cannot be read.
        """
        return cls(sources, tuple(lint(source.path for source in sources)))
