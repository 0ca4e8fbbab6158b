"""One of a run's first reports, known before the run: its first iterations were made already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source


@dataclass(frozen=True)
class FirstReport:
    """What a log will say.

    Attributes:
        iteration: at which it says so.
        loss: the training loss of the iterations since the report before, nats a token.
    """

    kind: ClassVar[str] = "first iterations"

    iteration: int
    loss: float

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> FirstReport:
        """What a preflight gives the run; see `Evidence`."""
        if not run.is_planned:
            raise NoSuchThing("the run was made, and not only planned")
        raise Missing("no iterations were made; make some with --steps")
