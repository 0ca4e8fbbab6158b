"""What a range test found: rates, what a few updates at each did to the loss, and the limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.source import Source

#: What a few updates at a rate did. "learns" is as good as the best; "lags" lowered the loss
#: by visibly less than that; "still" did not move it by more than its noise; "leaps" lowered it,
#: but threw it up on the way; "harms" raised it; "lost" means that the loss was not finite.
Effect = Literal["learns", "lags", "still", "leaps", "harms", "lost"]
#: Where the configured rate stands.
Place = Literal["too-high", "near-the-limit", "sound", "low", "too-low", "unknown"]


@dataclass(frozen=True)
class RatePoint:
    """One rate, tried from the run's own start.

    Attributes:
        rate: of every update.
        loss: on the fixed rows after the last update, nats a token; NaN where it was lost.
        change: that minus the untouched model's.
        noise: standard error of the change, over batches of the fixed rows, nats.
        leaps: before how many updates a batch's loss was far above the untouched model's on the
            same batch.
        effect: what they did.
        reversed: whether the batches came in reverse order.
    """

    rate: float
    loss: float
    change: float
    noise: float
    leaps: int = 0
    effect: Effect = "still"
    reversed: bool = False


@dataclass(frozen=True)
class RateRange:
    """What a range test found. Rates are those at the run's own scale.

    Attributes:
        configured: the run's rate; with a schedule, its highest.
        planned_updates: that the run is to make.
        untouched: the untouched model's loss on the fixed rows, nats a token.
        rows: how many fixed rows there are.
        split: whose rows they are: "validation" or "training".
        updates: of one trial, at most.
        points: rate by rate, from low to high.
        largest: the highest rate that lowered the loss about as well as the best, with the batches
            in both orders; None where it could not be told.
        fails_at: the lowest rate above it that did not; None where none was found.
        advised: the rate to use.
        place: where the configured rate stands.
        untold: why something could not be told, as a clause; empty otherwise.
    """

    kind: ClassVar[str] = "range of rates"

    configured: float
    planned_updates: int
    untouched: float
    rows: int
    split: str
    updates: int = 0
    points: tuple[RatePoint, ...] = ()
    largest: float | None = None
    fails_at: float | None = None
    advised: float | None = None
    place: Place = "unknown"
    untold: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> RateRange:
        """What a preflight gives the run."""
        if run.get(PlannedRun) is None:
            raise NoSuchThing("the run was made, and not only planned")
        raise Missing("no rates were tried; try some with --steps")

    def after(self, rate: float) -> RatePoint:
        """The point at a rate; of two, the worse."""
        points = [point for point in self.points if point.rate == rate]
        return max(points, key=lambda point: (point.loss != point.loss, point.loss))
