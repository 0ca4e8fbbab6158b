"""Which rate? A range test on the real model with the run's own rows.

At each rate the run's first updates are made from the run's own start, and the loss is measured
on fixed rows before and after: so rates are compared on the same rows, and not by the noisy loss
of one batch. One sweep with rising rates would mix up what each did. Rates that harm show within
a few updates, since Adam as mlx-lm has it takes its largest steps first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.judge.rate import planned_rates
from mlxdoctor.measure.rate_range import Effect, Place, RatePoint, RateRange
from mlxdoctor.twin.predict import TimedBatch
from mlxdoctor.twin.prepared import Prepared
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.step import ignores_rate
from mlxdoctor.twin.trials import Trials, changes, trials_of

#: Updates of one trial: the most, and the fewest that tell anything.
MOST_UPDATES, FEWEST_UPDATES = 24, 8
#: Trials that the time should do for, and the fewest without which nothing is begun.
TRIALS, FEWEST_TRIALS = 11, 4
#: Updates to see what one takes: batches of one shape are compiled first.
WARM_UPDATES = 4
#: Share of the best rate's gain that a rate which learns has. In trials of 32 updates on 4 pairs of
#: base and data the gain falls from 74 to 93% of the best to 12 to 37% from one rate to its double.
SHARE = 2 / 3
#: Share of the untouched model's loss by which a visible change moves it: less is no use.
VISIBLE = 0.01
#: Standard errors of a visible change: one in 300 by chance.
ERRORS = 3.0
#: Share of the untouched model's loss on the same batch by which a loss that leaps is above it: a
#: model thrown back to a constant guess may still gain where answers are few words. None of 27
#: rates up to the limit, on 4 pairs, had a batch above the untouched model's loss at all.
LEAP = 0.1
#: Updates that leap, at the least: one hard batch is no leap.
LEAPS = 2
#: Times the last rate is the next one, until a bracket is found.
STRIDE = 4.0
#: Upper over lower rate of a bracket that is narrow enough: half a factor 3.
FINE = 1.5
#: Largest rate that learns over the advised one: whole runs are longer than a test
#: (reports/preflight-rates.md).
MARGIN = 3.0
#: Advised rate over one that is far below it: a tenth learns far more slowly.
FAR_BELOW = 10.0
#: Rates between which is searched: nothing is learned below, and nothing is left above.
LOWEST, HIGHEST = 1e-8, 10.0
#: Why a range test tells nothing of a run with it, as a clause.
ADAFACTOR = "Adafactor takes relative steps of its own, whatever the rate"
#: What a rate does that is too high.
FAILING = frozenset({"leaps", "harms", "lost"})
#: Makes a trial at a rate; all points so far from low to high, and none where the time is up.
Attempt = Callable[[float], Sequence[RatePoint]]


@dataclass(frozen=True)
class RangeTest:
    """What a range test found, and what its batches took.

    Attributes:
        rates: what was found.
        trained: every training batch whose shape was compiled before.
        validated: every fixed batch likewise, each time that it was measured.
        longest: rows, inputs a row and peak of memory in bytes of a step on the longest batch of
            the rows; None where there was no time for it.
    """

    rates: RateRange
    trained: tuple[TimedBatch, ...]
    validated: tuple[TimedBatch, ...]
    longest: tuple[int, int, int] | None


def range_test(run: Prepared, *, seconds: float, progress: Progress | None = None) -> RangeTest:
    """Find the largest rate that learns, and the one to use; the model is put back as it was.

    Args:
        run: model, rows and settings.
        seconds: that it may take, about.
        progress: called trial by trial.
    """
    deadline = time.perf_counter() + seconds
    with trials_of(run, MOST_UPDATES) as trials:
        search = Search(trials, deadline, progress or (lambda *_: None))
        untold = ADAFACTOR if ignores_rate(run.settings) else search.prepare()
        if not untold:
            search_rates(min(max(configured_rate(run.settings), 1e-6), 1e-2), search.attempt)
            search.confirm()
        longest = trials.longest() if search.has_time else None
        rates = search.result(untold)
        return RangeTest(rates, tuple(trials.trained), tuple(trials.validated), longest)


def configured_rate(settings: Settings) -> float:
    """The rate that the run states; of a schedule, the highest it comes to."""
    config = TrainingConfig((), Path("plan"), settings.stated(), "mlx-lm")
    rates = planned_rates(config, _updates(settings))
    return settings.learning_rate if rates is None else float(rates.max())


def _updates(settings: Settings) -> int:
    return max(settings.iters // settings.grad_accumulation_steps, 1)


def effect_of(point: RatePoint, untouched: float, best: float) -> Effect:
    """What a change of the loss is, beside the best one (negative, or 0 where there is none)."""
    change = point.change
    seen = max(ERRORS * point.noise, VISIBLE * untouched)
    if not math.isfinite(change):
        return "lost"
    if change > max(seen, 0.0):
        return "harms"
    if point.leaps >= LEAPS:
        return "leaps"
    if abs(change) <= seen:
        return "still"
    return "learns" if change <= SHARE * best else "lags"


def judged(points: Sequence[RatePoint], untouched: float) -> list[RatePoint]:
    """The points in order of their rates, each with its effect beside the best of all."""
    gains = [point.change for point in points if math.isfinite(point.change)]
    steady = [point.change for point in points if point.leaps < LEAPS and point.change < 0]
    best = min(0.0, *(steady or gains), 0.0)
    return [
        replace(point, effect=effect_of(point, untouched, best))
        for point in sorted(points, key=lambda point: point.rate)
    ]


def search_rates(start: float, attempt: Attempt) -> None:
    """Try rates until the largest that learns is known to within `FINE`.

    Args:
        start: the rate to begin with.
        attempt: makes a trial; see `Attempt`.
    """
    rate: float | None = start
    while rate is not None and LOWEST <= rate <= HIGHEST:
        points = attempt(rate)
        rate = _next(points) if points else None


def _next(points: Sequence[RatePoint]) -> float | None:
    """The rate to try next, after some from low to high; None where enough is known.

    First a rate that learns is looked for, then one above that does not, then one below that
    learns less than the best, and then the border between the first two is narrowed.
    """
    learning = [point for point in points if point.effect in {"learns", "lags"}]
    if learning:
        best = min(learning, key=lambda point: point.change)
        low = [point.rate for point in learning if point.change <= SHARE * best.change][-1]
        above = [point.rate for point in points if point.rate > low]
        if not above:
            return low * STRIDE
        if points[0] is best:
            return best.rate / STRIDE
    else:
        still = [point.rate for point in points if point.effect == "still"]
        above = [point.rate for point in points if point.effect in FAILING]
        if not above:
            return max(still) * STRIDE**2
        below = [rate for rate in still if rate < min(above)]
        if not below:
            return min(above) / STRIDE**2
        low = max(below)
    high = min(above)
    return math.sqrt(low * high) if high / low > FINE else None


@dataclass
class Search:
    """The trials of a range test as they are made, and what they say so far."""

    trials: Trials
    deadline: float
    progress: Progress
    points: list[RatePoint] = field(default_factory=list)
    before: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    placebo: list[float] = field(default_factory=list)
    updates: int = MOST_UPDATES
    longest_trial: float = 0.0
    untold: str = ""

    @property
    def has_time(self) -> bool:
        """Whether there is time for a trial as long as the longest."""
        return time.perf_counter() + self.longest_trial <= self.deadline

    @property
    def untouched(self) -> float:
        """The untouched model's loss on the fixed batches, nats a token."""
        return float(np.average(self.before, weights=self.tokens)) if any(self.tokens) else math.nan

    def prepare(self) -> str:
        """Measure the untouched model, and how many updates there is time for.

        Returns:
            Why nothing can be told, as a clause; empty where it can.
        """
        self.progress("measuring the untouched model", 0, TRIALS)
        begun = time.perf_counter()
        self.before, self.tokens = zip(*self.trials.held_losses(), strict=True)
        measuring = time.perf_counter() - begun
        if not math.isfinite(self.untouched):
            return "the untouched model's loss on the fixed rows is not finite"
        begun = time.perf_counter()
        self.trials.at(0.0, WARM_UPDATES, lambda: None)
        each = (time.perf_counter() - begun) / WARM_UPDATES
        if self.trials.trained:
            batches = self.trials.run.settings.grad_accumulation_steps
            each = median(batch.seconds for batch in self.trials.trained) * batches
        left = self.deadline - time.perf_counter()
        if left < FEWEST_TRIALS * (FEWEST_UPDATES * each + measuring):
            return f"one update takes {each:.1f} s, and the time does not do for a few rates"
        fitting = int((left / TRIALS - measuring) / each)
        self.updates = min(max(fitting, FEWEST_UPDATES), MOST_UPDATES)
        # No step at all: the losses of its batches are what batches differ by.
        begun = time.perf_counter()
        self.placebo, _ = self.trials.at(0.0, self.updates, self.trials.held_means)
        self.longest_trial = time.perf_counter() - begun
        if not all(map(math.isfinite, self.placebo)):
            return "the untouched model's loss on the training rows is not finite"
        return ""

    def attempt(self, rate: float, *, reverse: bool = False) -> list[RatePoint]:
        """Make a trial; every point so far, judged anew, and none where the time is up."""
        if not self.has_time:
            self.untold = "the time was up before the search had ended"
            return []
        done = min(len(self.points), TRIALS - 1)
        self.progress(f"training at rate {rate:.2g}", done, TRIALS)
        begun = time.perf_counter()
        losses, held = self.trials.at(rate, self.updates, self.trials.held_means, reverse=reverse)
        self.longest_trial = max(self.longest_trial, time.perf_counter() - begun)
        change, noise = changes(held or (), self.before, self.tokens)
        before = self.placebo[::-1] if reverse else self.placebo
        leaps = sum(
            not loss <= untouched * (1 + LEAP)
            for loss, untouched in zip(losses, before, strict=False)
        )
        self.points.append(
            RatePoint(rate, self.untouched + change, change, noise, leaps, reversed=reverse)
        )
        self.points = judged(self.points, self.untouched)
        return self.points

    @property
    def good(self) -> list[float]:
        """Rates that learn, from low to high, in every order that was tried."""
        bad = {point.rate for point in self.points if point.effect != "learns"}
        return list(dict.fromkeys(point.rate for point in self.points if point.rate not in bad))

    def confirm(self) -> None:
        """Try the largest rate again with the batches in another order, else the next lower."""
        for rate in reversed(self.good):
            if not self.attempt(rate, reverse=True) or rate in self.good:
                break

    def result(self, untold: str) -> RateRange:
        """What the trials say.

        Args:
            untold: why there were none, as a clause; empty where there were.
        """
        settings, trials, points = self.trials.run.settings, self.trials, self.points
        largest = None if untold or not self.good else self.good[-1]
        # Above the best only: below it a rate lags since it is low.
        failing = [point.rate for point in points if largest is not None and point.rate > largest]
        untold = untold or self.untold
        if not untold and largest is None:
            untold = (
                f"no rate tried from {points[0].rate:.2g} to {points[-1].rate:.2g} lowered the "
                f"loss of the {trials.split} rows visibly within {self.updates} updates"
            )
        rates = RateRange(
            configured=configured_rate(settings),
            planned_updates=_updates(settings),
            untouched=self.untouched,
            rows=len({index for batch in trials.held for index in batch.indices}),
            split=trials.split,
            updates=self.updates,
            points=tuple(points),
            largest=largest,
            fails_at=min(failing, default=None),
            advised=None if largest is None else float(f"{largest / MARGIN:.2g}"),
            untold=untold,
        )
        return replace(rates, place=place_of(rates))


def place_of(rates: RateRange) -> Place:
    """Where the configured rate stands among those that were tried."""
    rate, largest, advised = rates.configured, rates.largest, rates.advised
    if largest is None or advised is None:
        bad = [point.rate for point in rates.points if point.effect in FAILING]
        return "too-high" if rate in bad else "unknown"
    if rate > largest / FINE:
        if rates.fails_at is not None and rate >= rates.fails_at:
            return "too-high"
        return "near-the-limit" if rate <= largest or rates.fails_at is not None else "unknown"
    if rate >= advised / FAR_BELOW:
        return "sound"
    # Whether the whole run goes less far than the test did in its few updates.
    return "too-low" if rate * rates.planned_updates < advised * rates.updates else "low"
