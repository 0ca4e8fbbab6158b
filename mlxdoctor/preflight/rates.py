"""Which rate? A range test on the real model with the run's own rows.

At each rate the run's first updates are made from the run's own start, and the loss is measured
on fixed rows before and after: so rates are compared on the same rows, and not by the noisy loss
of one batch. One sweep with rising rates would mix up what each did. Rates that harm show within
a few updates, since Adam as mlx-lm has it takes its largest steps first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.measure.rate_range import Place, RatePoint, RateRange
from mlxdoctor.preflight.prepared import PreparedRun
from mlxdoctor.preflight.rate_search import (
    FAILING,
    RateLimits,
    changes,
    judged,
    leaps_of,
    lower_rates,
    search,
)
from mlxdoctor.preflight.rate_sentences import conclude
from mlxdoctor.preflight.rate_trials import Trials, fingerprint, trials_of
from mlxdoctor.train.settings import Settings

#: Updates of one trial: the most, and the fewest that tell anything.
MOST_UPDATES, FEWEST_UPDATES = 24, 8
#: Trials that the time should do for, and the fewest without which nothing is begun.
TRIALS, FEWEST_TRIALS = 11, 4
#: Updates to see what one takes: batches of one shape are compiled first.
WARM_UPDATES = 4
#: Fixed batches of rows.
HELD = 8


def range_test(
    settings: Settings | PreparedRun,
    *,
    seconds: float,
    progress: Progress | None = None,
    limits: RateLimits | None = None,
    with_longest: bool = True,
) -> RateRange:
    """Find the largest rate that learns, and the one to use; the model is put back as it was.

    Args:
        settings: the run's; or the run, prepared.
        seconds: that it may take, about, loading not included.
        progress: called trial by trial.
        limits: when a rate learns.
        with_longest: also make a step on the longest batch, for its memory.

    Raises:
        InputError: the model, the data or a setting is unusable.
    """
    from mlxdoctor.preflight.prepared import prepared_run

    run = settings if isinstance(settings, PreparedRun) else prepared_run(settings)
    limits = limits or RateLimits()
    before = fingerprint(run.model)
    begun = time.perf_counter()
    tell = progress or (lambda *_: None)
    with trials_of(run, MOST_UPDATES, HELD) as trials:
        test = _Test(run, trials, limits, begun + seconds, tell)
        why_not = ignores_rate(run.settings) or test.prepare()
        if not why_not:
            search(_start(run.settings), test.attempt, limits)
            test.confirm()
        longest = trials.longest() if with_longest and test.has_time else None
        spent = len(trials.costs) // run.settings.grad_accumulation_steps
        found = replace(
            test.result(why_not),
            longest=longest,
            total_updates=spent,
            costs=tuple(trials.costs),
            validated=tuple(trials.validated),
        )
    found = replace(
        found, seconds=time.perf_counter() - begun, restored=fingerprint(run.model) == before
    )
    return conclude(found)


def configured_rate(settings: Settings) -> float:
    """The rate that the run states; of a schedule, the highest it comes to."""
    if not settings.lr_schedule:
        return settings.learning_rate
    from mlx_lm.tuner.utils import build_schedule

    schedule = build_schedule(dict(settings.lr_schedule))
    updates = max(settings.iters // settings.grad_accumulation_steps, 1)
    every = range(0, updates, max(updates // 1000, 1))
    rates: list[Any] = [schedule(at) for at in every]
    return max(float(getattr(one, "item", lambda one=one: one)()) for one in rates)


def ignores_rate(settings: Settings) -> str:
    """Why the rate says nothing, as a clause; empty where it does."""
    options = settings.optimizer_config.get(settings.optimizer) or {}
    if settings.optimizer == "adafactor" and options.get("relative_step", True):
        return "Adafactor takes relative steps of its own, whatever the rate"
    return ""


def _start(settings: Settings) -> float:
    return min(max(configured_rate(settings), 1e-6), 1e-2)


@dataclass
class _Test:
    """A range test while it is made."""

    run: PreparedRun
    trials: Trials
    limits: RateLimits
    deadline: float
    tell: Callable[[str, int, int], None]
    points: list[RatePoint] = field(default_factory=list)
    others: list[RatePoint] = field(default_factory=list)
    before: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    placebo: tuple[float, ...] = ()
    updates: int = MOST_UPDATES
    longest_trial: float = 0.0
    cut_short: bool = False

    @property
    def has_time(self) -> bool:
        return time.perf_counter() + self.longest_trial <= self.deadline

    @property
    def untouched(self) -> float:
        return _mean(self.before, self.tokens)

    def prepare(self) -> str:
        """Measure the untouched model, and how many updates there is time for.

        Returns:
            Why nothing can be told, as a clause; empty where it can.
        """
        self.tell("measuring the untouched model", 0, TRIALS)
        begun = time.perf_counter()
        pairs = list(self.trials.held_losses())
        measuring = time.perf_counter() - begun
        self.before = tuple(loss for loss, _ in pairs)
        self.tokens = tuple(count for _, count in pairs)
        if not math.isfinite(self.untouched):
            return "the untouched model's loss on the fixed rows is not finite"
        self.trials.at(0.0, updates=WARM_UPDATES, measure=False)
        each = self._update_seconds()
        left = self.deadline - time.perf_counter()
        fitting = int((left / TRIALS - measuring) / each)
        if fitting < FEWEST_UPDATES:
            fitting = FEWEST_UPDATES
            if left < FEWEST_TRIALS * (FEWEST_UPDATES * each + measuring):
                return f"one update takes {each:.1f} s, and the time does not do for a few rates"
        self.updates = min(fitting, MOST_UPDATES)
        # The placebo: no step at all. What its batches' losses are is what batches differ by.
        placebo = self.trials.at(0.0, updates=self.updates)
        self.placebo = placebo.losses
        self.longest_trial = placebo.seconds
        if not all(map(math.isfinite, placebo.losses)):
            return "the untouched model's loss on the training rows is not finite"
        return ""

    def _update_seconds(self) -> float:
        """What an update takes: the median of batches of a shape that was there before."""
        costs = self.trials.costs
        warm = [one.seconds for one in costs if not one.first] or [one.seconds for one in costs]
        return median(warm) * self.run.settings.grad_accumulation_steps

    def attempt(self, rate: float, *, other: bool = False) -> RatePoint | None:
        """A trial; None where the time is up."""
        if not self.has_time:
            self.cut_short = True
            return None
        number = len(self.points) + len(self.others)
        self.tell(f"training at rate {rate:.2g}", min(number, TRIALS - 1), TRIALS)
        trial = self.trials.at(rate, updates=self.updates, untouched=self.placebo, reverse=other)
        self.longest_trial = max(self.longest_trial, trial.seconds)
        change, noise = changes(trial.held, self.before, self.tokens)
        before = self.placebo[::-1] if other else self.placebo
        point = RatePoint(
            *(rate, self.untouched + change, change, noise, len(trial.losses)),
            leaps=leaps_of(trial.losses, before, self.limits),
            effect="still",
            other_order=other,
        )
        into = self.others if other else self.points
        into.append(point)
        return next(one for one in self.judged if one.rate == rate and one.other_order == other)

    @property
    def judged(self) -> list[RatePoint]:
        return judged([*self.points, *self.others], self.untouched, self.limits)

    @property
    def good(self) -> list[RatePoint]:
        """Rates that learn, from low to high, in every order that was tried."""
        points = self.judged
        lost = {one.rate for one in points if one.other_order and one.effect != "learns"}
        return [
            one
            for one in points
            if one.effect == "learns" and not one.other_order and one.rate not in lost
        ]

    def confirm(self) -> None:
        """The placebo seed: the largest rate again, with the batches in another order.

        Where it does not learn then, the next lower one is tried. And rates far below, to see
        from where on anything is learned.
        """
        for one in reversed(self.good):
            again = self.attempt(one.rate, other=True)
            if again is None or again.effect == "learns":
                break
        if self.good:
            advised = advised_rate(self.good[-1].rate, self.limits)
            if advised < min(one.rate for one in self.points) * self.limits.margin:
                self.attempt(advised)
            lowest = min(one.rate for one in self.judged)
            for rate in lower_rates(lowest, self.limits):
                if min(self.judged, key=lambda one: one.rate).effect == "still":
                    break
                if self.attempt(rate) is None:
                    break

    def result(self, why_not: str) -> RateRange:
        """What was found, without the sentences."""
        run, points = self.run, self.judged
        configured = configured_rate(run.settings)
        parameters = run.settings.lora_parameters
        found = RateRange(
            configured,
            None if parameters is None else float(parameters["scale"]),
            tuple(points),
            self.untouched if self.before else math.nan,
            "validation rows" if self.trials.of_validation else "training rows",
            len({index for one in self.trials.held for index in one.indices}),
            updates=self.updates,
            untold=why_not,
        )
        if why_not:
            return found
        safe = self.good
        learned = [one for one in points if one.effect in {"learns", "lags"}]
        largest = safe[-1].rate if safe else None
        # Above the best only: below it a rate lags since it is low.
        failing = [one.rate for one in points if largest is not None and one.rate > largest]
        advised = None if largest is None else advised_rate(largest, self.limits)
        found = replace(
            found,
            largest_that_learns=largest,
            fails_at=min(failing, default=None),
            advised=advised,
            learns_from=min((one.rate for one in learned), default=None),
            order_noise=self._order_noise(),
            untold="the time was up before the search had ended" if self.cut_short else "",
        )
        return replace(found, place=self._place(configured, found))

    def _order_noise(self) -> float | None:
        """How much the change at one rate differs between two orders of the batches, nats."""
        pairs = [
            (one.change, other.change)
            for other in self.others
            for one in self.points
            if one.rate == other.rate and math.isfinite(other.change)
        ]
        return abs(pairs[-1][0] - pairs[-1][1]) if pairs else None

    def _place(self, rate: float, found: RateRange) -> Place:
        limits, largest, advised = self.limits, found.largest_that_learns, found.advised
        points = self.judged
        if largest is None or advised is None:
            bad = [one.rate for one in points if one.effect in FAILING]
            return "too-high" if rate in bad else "unknown"
        if rate > largest / limits.near:
            is_known = rate <= largest or found.fails_at is not None
            fails = found.fails_at is not None and rate >= found.fails_at
            return "too-high" if fails else "near-limit" if is_known else "unknown"
        still = [one.rate for one in points if one.effect == "still" and one.rate < advised]
        if rate <= max(still, default=0.0):
            return "too-low"
        return "low" if rate < advised / limits.far_below else "sound"


def advised_rate(largest: float, limits: RateLimits) -> float:
    """The rate to use beside the largest that learns, to two digits."""
    return float(f"{largest / limits.margin:.2g}")


def _mean(losses: tuple[float, ...], tokens: tuple[float, ...]) -> float:
    total = sum(tokens)
    return sum(a * b for a, b in zip(losses, tokens, strict=True)) / total if total else math.nan
