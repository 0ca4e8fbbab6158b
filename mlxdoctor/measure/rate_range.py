"""What a range test found: rates, what a few updates at each did to the loss, and the limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source

#: What a few updates at a rate did. "learns" is as good as the best; "lags" lowered the loss
#: by visibly less than that; "still" did not move it by more than its noise; "leaps" lowered it,
#: but threw it up on the way; "harms" raised it; "lost" means that the loss was not finite.
Effect = Literal["learns", "lags", "still", "leaps", "harms", "lost"]
#: Where the configured rate stands.
Place = Literal["too-high", "near-limit", "sound", "low", "too-low", "unknown"]


@dataclass(frozen=True)
class StepCost:
    """What one batch of a range test took: forward, backward, and the update where it ends one.

    Attributes:
        rows: of the batch.
        width: its columns, padding included.
        tokens: those of the rows themselves, without padding.
        seconds: wall-clock time.
        first: whether it was the first batch of its shape, for which the step is compiled.
    """

    rows: int
    width: int
    tokens: int
    seconds: float
    first: bool


@dataclass(frozen=True)
class LongestStep:
    """A step on the batch with the most columns of a pass over the training rows.

    Attributes:
        rows: of that batch.
        width: its columns.
        seconds: wall-clock time, compilation included.
        peak_bytes: the most memory that MLX held meanwhile, the model's included.
        kept_bytes: how much of that was kept to go back to the start, which a run does not do.
    """

    rows: int
    width: int
    seconds: float
    peak_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class RatePoint:
    """One rate, tried from the run's own start.

    Attributes:
        rate: of every update.
        loss: on the fixed rows after the last update, nats a token; NaN where it was lost.
        change: that minus the untouched model's.
        noise: standard error of the change, over batches of the fixed rows, nats.
        updates: that were made.
        leaps: before how many of them a batch's loss was far above the untouched model's on the
            same batch.
        effect: what they did.
        other_order: whether the batches came in reverse order: the placebo seed.
    """

    rate: float
    loss: float
    change: float
    noise: float
    updates: int
    leaps: int
    effect: Effect
    other_order: bool = False


@dataclass(frozen=True)
class RateRange:
    """What a range test found. Rates are those at the run's own scale.

    Attributes:
        configured: the run's rate; with a schedule, its highest.
        scale: of the adapter; None where there is none.
        points: rate by rate, from low to high.
        untouched: the untouched model's loss on the fixed rows, nats a token.
        measured_on: what these rows are, as a clause.
        rows: how many.
        largest_that_learns: the highest rate that lowered the loss about as well as the best,
            with the batches in both orders; None where it could not be told.
        fails_at: the lowest rate above it that did not; None where none was found.
        advised: the rate to use.
        learns_from: the lowest rate that lowered the loss visibly; None where none did.
        place: where the configured rate stands.
        order_noise: by how much the change at one rate differs between two orders, nats.
        updates: of one trial, at most.
        total_updates: all that were made.
        seconds: that the test took, loading not included.
        costs: of every batch.
        validated: of every fixed batch, each time that it was measured: a forward pass.
        longest: a step on the longest batch; None where none was made.
        restored: whether every trained parameter was afterwards what it was, bit for bit.
        conclusions: a sentence each.
        untold: why something could not be told, as a sentence; empty otherwise.
    """

    kind: ClassVar[str] = "range of rates"

    configured: float
    scale: float | None
    points: tuple[RatePoint, ...]
    untouched: float
    measured_on: str
    rows: int
    largest_that_learns: float | None = None
    fails_at: float | None = None
    advised: float | None = None
    learns_from: float | None = None
    place: Place = "unknown"
    order_noise: float | None = None
    updates: int = 0
    total_updates: int = 0
    seconds: float = 0.0
    costs: tuple[StepCost, ...] = ()
    validated: tuple[StepCost, ...] = ()
    longest: LongestStep | None = None
    restored: bool = False
    conclusions: tuple[str, ...] = ()
    untold: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> RateRange:
        """What a preflight gives the run; see `Evidence`."""
        if not run.is_planned:
            raise NoSuchThing("the run was made, and not only planned")
        raise Missing("no rates were tried; try some with --steps")

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON shows it, without the cost of each batch."""
        aside = {"costs", "validated", "points", "longest"}
        plain: Mapping[str, Any] = {k: v for k, v in vars(self).items() if k not in aside}
        return {
            **plain,
            "conclusions": list(self.conclusions),
            "points": [vars(one) for one in self.points],
            "longest": None if self.longest is None else vars(self.longest),
        }
