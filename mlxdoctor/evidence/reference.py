"""A healthy run that the examined one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class ReferenceRun:
    """What a run that went well left behind.

    Attributes:
        name: what its folder or file is called.
        config: what it was told to do, if known.
        log: how its loss went, if known.
    """

    kind: ClassVar[str] = "healthy run to compare with"

    name: str
    config: TrainingConfig | None
    log: TrainingLog | None

    @classmethod
    def find(cls, run: RunView) -> ReferenceRun:
        if (against := run.options.against) is None:
            raise NotThere("no healthy run was named; name one with --against")
        other = run.other(against)
        found = cls(other.name, other.get(TrainingConfig), other.get(TrainingLog))
        if not found.sources:
            raise InputError(against, "holds no configuration or log to compare with")
        return found

    @property
    def sources(self) -> tuple[Source, ...]:
        """The files that were read of it."""
        parts = (self.config, self.log)
        return tuple(source for part in parts if part is not None for source in part.sources)
