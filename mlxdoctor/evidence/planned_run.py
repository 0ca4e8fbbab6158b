"""A run that has not begun. Only a preflight has one: it is known by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import NoSuchThing, RunView
from mlxdoctor.evidence.source import Source


@dataclass(frozen=True)
class PlannedRun:
    """What is planned.

    Attributes:
        config: the configuration, options of the command line included.
    """

    kind: ClassVar[str] = ""

    config: TrainingConfig

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own: the configuration is listed as that."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> PlannedRun:
        if not run.is_planned:
            raise NoSuchThing("the run was made, and not only planned")
        return cls(run.need(TrainingConfig))
