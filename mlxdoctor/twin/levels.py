"""The losses of a log that can be computed again, and each beside the same computed again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.curve import start_of
from mlxdoctor.measure.logged_levels import LoggedLoss, logged_loss

#: Iterations that are made again; where the first report comes later, as many as it takes.
ITERATIONS, LATEST_FIRST = 30, 60
#: Nats by which the very same loss differs where nothing but the log rounds.
EXACT = 0.003

#: The recorded losses, in order of time.
What = Literal["before", "report", "after"]


@dataclass(frozen=True)
class Level:
    """One recorded loss and the same computed again, nats a token.

    Attributes:
        what: the validation before the first update, a report on training, or the validation after
            the last.
        tolerance: by which they may differ: rounding, and the sampling error of other rows.
    """

    what: What
    iteration: int
    recorded: float
    computed: float
    tolerance: float

    @property
    def off(self) -> float:
        """The recorded loss less the computed one."""
        return self.recorded - self.computed

    @property
    def misfit(self) -> float:
        """Their difference where it is more than the tolerance; 0 where they agree."""
        return self.beyond(self.tolerance)

    def beyond(self, tolerance: float) -> float:
        """Their difference, nats; 0 where it is within a tolerance, or where both are lost."""
        finite = math.isfinite(self.recorded), math.isfinite(self.computed)
        if not all(finite):
            return math.inf if any(finite) else 0.0
        return abs(self.off) if abs(self.off) > tolerance else 0.0


def before_the_end(levels: Sequence[Level]) -> list[Level]:
    """Those of the start of a run: its first validation and its first reports."""
    return [level for level in levels if level.what != "after"]


def misfit(levels: Sequence[Level]) -> float:
    """The largest disagreement, nats; 0 where all agree."""
    return max((level.misfit for level in levels), default=0.0)


def off(levels: Sequence[Level]) -> tuple[float, float]:
    """How far the first validation is off, or without one the last; and the reports, nats.

    Of two readings that agree, the nearer one is right.
    """
    offs = {level.what: abs(level.off) for level in levels}
    reports = [abs(level.off) for level in levels if level.what == "report"]
    both = offs.get("before", offs.get("after", 0.0)), max(reports, default=0.0)
    first, later = (math.inf if math.isnan(each) else each for each in both)
    return first, later


@dataclass(frozen=True)
class Recorded:
    """The losses of a log that can be computed again.

    Attributes:
        before: of the validation before the first update; None where there is none.
        reports: (iterations before it, its own, loss) of the first reports on training.
        after: as the log has the end of training; None where it validated nothing.
        validations: (iteration, loss) of those in between.
        first: the loss that the log begins with, of whichever rows; NaN where there is none.
    """

    before: float | None
    reports: tuple[tuple[int, int, float], ...]
    after: LoggedLoss | None
    validations: tuple[tuple[int, float], ...] = ()
    first: float = math.nan

    def misfit(self, levels: Sequence[Level]) -> float:
        """The largest disagreement of the start, nats.

        What was saved may not be what was trained: the end counts only where little of the start
        was recorded, and not where training went on to a lower loss after the last validation.
        """

        def counts(level: Level) -> bool:
            is_later = level.computed < level.recorded
            return level.what != "after" or self.before is None or not (self.reports or is_later)

        return misfit(list(filter(counts, levels)))

    @classmethod
    def of(cls, log: TrainingLog, config: TrainingConfig | None) -> "Recorded":
        """What a log has of them.

        Raises:
            Missing: it has none.
        """
        main = log.main
        reports: list[tuple[int, int, float]] = []
        series = main.get("train_loss")
        # Trainers that count steps may count updates.
        batches = config.grad_accumulation_steps if config is not None else None
        is_counted = main.axis == "iteration" or (main.axis == "step" and batches in {None, 1})
        if series is not None and is_counted and main.shows_start:
            places = pairwise([0, *series.iterations.tolist()])
            for (last, iteration), loss in zip(places, series.values.tolist(), strict=True):
                if not last < iteration <= (ITERATIONS if reports else LATEST_FIRST):
                    break
                reports.append((last, iteration, loss))
        after = logged_loss(log, planned=config.iters if config is not None else None)
        if after is not None and after.split == "train":
            after = None
        if main.base_val_loss is None and not reports and after is None:
            raise Missing("the log has no loss that could be computed again")
        every = main.finite("val_loss")
        validations = list(zip(every.iterations.tolist(), every.values.tolist(), strict=True))
        between = tuple(validations[0 if main.base_val_loss is None else 1 : -1])
        start = start_of(main)[0] if series is not None else math.nan
        return cls(main.base_val_loss, tuple(reports), after, between, start)
