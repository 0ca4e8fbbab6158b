"""What a planned run would take: memory at its peak, and time to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source


@dataclass(frozen=True)
class Way:
    """A set of changes with which a run fits.

    Attributes:
        sentences: what to do and what it costs, a sentence each.
        settings: mlx-lm's keys -> new values; empty where another base is needed.
        peak: the memory that it then takes, in bytes.
    """

    sentences: tuple[str, ...]
    settings: Mapping[str, Any]
    peak: int


@dataclass(frozen=True)
class RunCost:
    """What a planned run would take.

    Attributes:
        peak: bytes at the highest.
        memory: bytes that there are; None where it is to run on another machine.
        room: of these, what may be planned with.
        parts: what the peak is made of: name -> bytes.
        batch_size, tokens: the largest batch that is trained on.
        is_rough: shapes were guessed from the model's name.
        is_measured: one real step corrected it.
        ways: to make it fit, the cheapest first.
        seconds: low, likeliest and high, to its end; None where no step was timed.
        step: low and high of an average iteration, without validation and saving, in seconds.
    """

    kind: ClassVar[str] = "what the run takes"

    peak: int
    memory: int | None
    room: int | None
    parts: Mapping[str, int]
    batch_size: int
    tokens: int
    is_rough: bool = False
    is_measured: bool = False
    ways: tuple[Way, ...] = ()
    seconds: tuple[float, float, float] | None = None
    step: tuple[float, float] | None = None

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> RunCost:
        """What a preflight gives the run; see `Evidence`."""
        if not run.is_planned:
            raise NoSuchThing("the run was made, and not only planned")
        raise Missing("the rows or the shape of the base model are not known")


def in_gigabytes(count: float) -> str:
    """Bytes as people say them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
