"""The watch on one training: its reports go in, and an alarm comes out where one is beyond doubt.

A training loss that leaves its level is judged by betting. For each of the last reports a bet is
made, with a stake of 1, that the series left its level upwards there. Each report z of the bet (in
units of the noise, above the level before the bet) multiplies the wealth by exp(a z - a^2/2), at
most by `cap`. While the series stays at or below its level that factor has a mean of at most 1, so
no bet reaches a wealth of W with a probability over 1/W, however often one looks (Ville 1939;
Shafer 2021; for changes at an unknown time Shin, Ramdas and Rinaldo 2023). Bets add up: in a sound
run of 100 reports an alarm has a probability of at most 0.6%.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.engines.series import STILL, decimals, noise
from mlxdoctor.evidence.logs.series import is_preference
from mlxdoctor.watch.alarms import Alarm, AlarmKind, Best, Savings

#: Last reports whose median speed tells how long the rest would take.
SPEED_REPORTS = 5
#: Values outside these are taken to be the nearest of them: a log may hold any number.
SMALLEST, LARGEST = 1e-30, 1e30
#: Losses, and what a person calls them.
_LOSSES = {"train_loss": "training loss", "val_loss": "validation loss"}
#: Unit -> the latest report that a validation of the untouched model can have.
_BEFORE_TRAINING = {"iteration": 1, "step": 0, "report": 0}
_TUNED = "0 of 64 sound runs of the two tuning bases; held out: reports/watch.md"


@dataclass(frozen=True)
class LogRow:
    """One report of a training.

    Attributes:
        step: iterations or updates done.
        values: canonical metric name -> value (see `Segment`); NaN is what the log says.
    """

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Limits:
    """When a loss has left its level, does not move, or a speed has collapsed."""

    level: int = limit(5, unit="reports", source="whose median is the level before a bet begins")
    history: int = limit(10, unit="reports", source="whose changes tell the noise")
    window: int = limit(6, unit="reports", source="a bet is over after so many")
    noise_floor: float = limit(
        0.05, unit="log units", source="report to report in the ward's steadiest noisy runs"
    )
    noise_of_one_step: float = limit(
        0.15,
        unit="log units for a report of one step; of k steps 1/sqrt(k) of it",
        source="0.12 to 0.14 in most sound runs that report each step; batches of 2 to 4 rows",
    )
    stake: float = limit(
        1.5,
        unit="the factor is exp(stake z - stake^2/2)",
        source="an e-value for any innovation z whose tail is no heavier than a normal one",
    )
    cap: float = limit(
        100.0, unit="largest factor of one report", source="a spike is one report and no alarm"
    )
    first_bets: int = limit(4, unit="bets", source="the first updates are where most runs break")
    first_wealth: float = limit(
        1_000.0, unit="times the stake", source="designed: 1 in 1,000 a bet", false_alarms=_TUNED
    )
    wealth: float = limit(
        50_000.0,
        unit="times the stake",
        source="designed: 1 in 50,000 a bet; three reports at the cap, and not two",
        false_alarms=_TUNED,
    )
    least_ratio: float = limit(
        1.2,
        unit="mean of the bet's reports over the level before",
        source="less is no reason to stop a training, however certain",
        false_alarms=_TUNED,
    )
    last_ratio: float = limit(
        1.1, unit="the last report over the level before", source="a spike of two reports is over"
    )
    least_change: float = limit(
        0.1, unit="nats above the level before", source="small losses double and halve"
    )
    least_steps: int = limit(
        5, unit="iterations that a bet lasts", source="neighbouring batches may be hard alike"
    )
    harmed_ratio: float = limit(
        1.1,
        unit="validation loss over the untouched model's",
        source="sound runs of the ward stay below 0.93",
        false_alarms=_TUNED,
    )
    same_validations: float = limit(
        1e-4,
        unit="probability that all validation losses are the same by chance",
        source="designed; three equal losses of three decimals",
        false_alarms=_TUNED,
    )
    same_losses: float = limit(
        1e-8,
        unit="probability that all training losses are the same by chance",
        source="designed; five equal losses of three decimals",
        false_alarms=_TUNED,
    )
    coarsest: float = limit(
        0.002, unit="last digit over the loss", source="a small loss has too few digits to repeat"
    )
    exact_decimals: int = limit(
        8, unit="decimals", source="printed by trainers that do not round: one repeat is no chance"
    )
    slower: float = limit(
        3.0,
        unit="speed before over speed now, in every report",
        source="two jobs that share a machine halve each other's speed",
        false_alarms=_TUNED,
    )
    slow_reports: int = limit(5, unit="reports", source="the same number before, for the level")
    slow_seconds: float = limit(
        120.0,
        unit="seconds at the lower speed",
        source="another program's busy minute; a run of the ward was slowed 3.6 times for 3 s",
    )
    speed_level: int = limit(15, unit="reports", source="speed changes with the length of the rows")
    near_memory: float = limit(
        0.75, unit="peak memory over the machine's", source="Metal's limit for a working set"
    )


LIMITS = Limits()


@dataclass(frozen=True)
class Fact:
    """A value that needs no statistics, and how often it must be repeated.

    Attributes:
        kind: of the alarm.
        column: of the log.
        holds: whether a value is such a one.
        reports: in how many in a row it must hold.
        says: the sentence, with the fields `value` and `reports`.
        source: why so many.
        is_from_start: True where no other value may come before, False where one must.
        least_before: a smaller value before them excuses them.
        least_step: the first step at which it counts.
    """

    kind: AlarmKind
    column: str
    holds: Callable[[float], bool]
    reports: int
    says: str
    source: str
    is_from_start: bool | None = None
    least_before: float = -math.inf
    least_step: int = 0


def _is_not_finite(value: float) -> bool:
    return not math.isfinite(value)


def _is_zero(value: float) -> bool:
    return value == 0


FACTS = (
    Fact(
        *(AlarmKind.NON_FINITE, "train_loss", _is_not_finite, 1),
        says="the training loss is {value}",
        source="the weights are no longer finite either",
    ),
    Fact(
        *(AlarmKind.NON_FINITE, "val_loss", _is_not_finite, 1),
        says="the validation loss is {value}",
        is_from_start=False,
        source="without validation rows the trainer prints NaN although the model is sound",
    ),
    Fact(
        *(AlarmKind.NON_FINITE, "grad_norm", _is_not_finite, 3),
        says="the gradient norm was {value} in {reports} reports in a row",
        source="loss scaling of float16 skips one or two steps at its start",
    ),
    Fact(
        *(AlarmKind.EXACT_ZERO, "train_loss", _is_zero, 2),
        says="the training loss was exactly 0 in {reports} reports in a row",
        least_before=0.05,
        source="one batch may have no supervised token; a smaller loss may be rounded to zero",
    ),
    Fact(
        *(AlarmKind.FROZEN, "learning_rate", _is_zero, 3),
        says="the learning rate was exactly 0 in all {reports} reports",
        is_from_start=True,
        least_step=20,
        source="a warm-up has one at most; micro-batches before its first update report 0, too",
    ),
    Fact(
        *(AlarmKind.FROZEN, "grad_norm", _is_zero, 3),
        says="the gradient norm was exactly 0 in {reports} reports in a row",
        source="one batch may have no supervised token",
    ),
)


class Watch:
    """Judges the reports of one training, in order.

    Args:
        iterations: how long the training is to be, where that is known.
        memory_gb: of the machine that trains, where that is known.
        patience: validations without a lower loss that raise an alarm; None for any number.
        unit: what the log counts.
        run: the training's name, where a log holds several.

    Attributes:
        best: the best validation; None before the first.
        last_step: of the last report on training; -1 before the first.
    """

    def __init__(
        self,
        iterations: int | None = None,
        memory_gb: float | None = None,
        patience: int | None = None,
        *,
        unit: str = "iteration",
        run: str = "",
    ) -> None:
        self.best: Best | None = None
        self.last_step = -1
        self._iterations, self._patience = iterations, patience
        self._unit, self._run = unit, run
        self._streaks = [_Streak() for _ in FACTS]
        self._departures = _Departures()
        self._same = {name: _Same() for name in _LOSSES}
        self._base: float | None = None
        self._harm = 1.0
        self._speeds = _Speeds(memory_gb)

    def see(self, row: LogRow) -> Alarm | None:
        """Judge one more report; an alarm where it leaves no doubt."""
        # Each judge sees every report, also where another has raised the alarm.
        alarms = [
            *(
                self._fact(fact, streak, row)
                for fact, streak in zip(FACTS, self._streaks, strict=True)
            ),
            *(self._frozen(name, row) for name in _LOSSES),
            self._harmed(row),
            self._diverging(row),
            self._speeds.see(row, self._unit),
            self._not_improving(row),
        ]
        if "train_loss" in row.values:
            self.last_step = row.step
        alarm = next((alarm for alarm in alarms if alarm is not None), None)
        if alarm is None:
            return None
        savings = self._speeds.savings(row.step, self._iterations, self._unit)
        return replace(alarm, savings=savings, run=self._run, unit=self._unit)

    def _fact(self, fact: Fact, streak: _Streak, row: LogRow) -> Alarm | None:
        value = row.values.get(fact.column)
        if value is None:
            return None
        streak.see(row.step, value, fact.holds(value))
        if streak.length < fact.reports or row.step < fact.least_step:
            return None
        before = streak.before
        if before is not None and before < fact.least_before:
            return None
        if fact.is_from_start is not None and fact.is_from_start != (before is None):
            return None
        measured = {fact.column: value}
        if fact.reports > 1:
            measured["reports"] = streak.length
        message = fact.says.format(value=value, reports=streak.length)
        return Alarm(fact.kind, row.step, streak.onset, message, measured)

    def _frozen(self, name: str, row: LogRow) -> Alarm | None:
        """An alarm where all losses are the same, and that can't be chance."""
        loss, same = row.values.get(name), self._same[name]
        if loss is None or not _is_usable(loss):
            return None
        same.see(row.step, loss)
        others = max(one.decimals for one in self._same.values())
        # A zero at the end of a number is not printed: 4.150 has the decimals of the other losses.
        digits = others if others == same.decimals + 1 else same.decimals
        resolution = 10.0**-digits
        if same.count < 2 or resolution > LIMITS.coarsest * loss:
            return None
        # As in `engines.series.repeats`; half precision has fewer digits than are printed.
        by_chance = resolution / (2 * math.sqrt(math.pi) * STILL * min(loss, LARGEST))
        is_validation = name == "val_loss"
        if not (is_validation and digits >= LIMITS.exact_decimals):
            by_chance = max(by_chance, 1e-3)
        most = LIMITS.same_validations if is_validation else LIMITS.same_losses
        if max(by_chance, sys.float_info.min) ** (same.count - 1) > most:
            return None
        message = f"the {_LOSSES[name]} was {loss:g} to the last digit {same.count} times in a row"
        measured = {name: loss, "reports": same.count}
        return Alarm(AlarmKind.FROZEN, row.step, same.onset, message, measured)

    def _harmed(self, row: LogRow) -> Alarm | None:
        """An alarm where validation losses stand above that of the untouched model."""
        loss = row.values.get("val_loss")
        if loss is None or not _is_usable(loss) or is_preference(tuple(row.values)):
            return None
        if self._base is None:
            # Training that begins above the untouched model's loss is no start.
            if self.last_step < 0 and row.step <= _BEFORE_TRAINING.get(self._unit, -1):
                self._base = loss
                self._departures.begin_at(loss)
            return None
        above = _logarithm(loss) - _logarithm(self._base)
        self._harm *= _factor(above / LIMITS.noise_floor)
        if self._harm < LIMITS.first_wealth or above < math.log(LIMITS.harmed_ratio):
            return None
        message = (
            f"the validation loss is {loss:.3f}, above the {self._base:.3f} of the untouched "
            f"model; {_chance(self._harm)}"
        )
        measured = {"level": self._base, "val_loss": loss, "wealth": self._harm}
        return Alarm(AlarmKind.DIVERGING, row.step, row.step, message, measured)

    def _diverging(self, row: LogRow) -> Alarm | None:
        """An alarm where the training loss has left its level, upwards."""
        loss = row.values.get("train_loss")
        if loss is None or not _is_usable(loss) or is_preference(tuple(row.values)):
            return None
        departure = self._departures.see(row.step, loss)
        if departure is None:
            return None
        level, onset, wealth = departure
        message = (
            f"the training loss left its level of {level:.3f} at {self._unit} {onset:,} and is "
            f"{loss:.3f} now; {_chance(wealth)}"
        )
        measured = {"level": level, "train_loss": loss, "wealth": wealth}
        return Alarm(AlarmKind.DIVERGING, row.step, onset, message, measured)

    def _not_improving(self, row: LogRow) -> Alarm | None:
        """An alarm where the validation loss has not improved for too long."""
        loss, best = row.values.get("val_loss"), self.best
        if loss is None or not math.isfinite(loss) or is_preference(tuple(row.values)):
            return None
        if best is None or loss < best.loss:
            self.best = Best(loss, row.step, 0, loss, unit=self._unit)
            return None
        best = self.best = replace(best, since=best.since + 1, last=loss)
        if self._patience is None or best.since < self._patience:
            return None
        measured = {"best_val_loss": best.loss, "best_step": best.step, "val_loss": loss}
        return Alarm(AlarmKind.NOT_IMPROVING, row.step, best.step, str(best), measured)


@dataclass
class _Streak:
    """In how many reports in a row something held, since which step, and the value before."""

    length: int = 0
    onset: int = 0
    before: float | None = None

    def see(self, step: int, value: float, holds: bool) -> None:
        if not holds:
            self.length, self.before = 0, value
            return
        if self.length == 0:
            self.onset = step
        self.length += 1


@dataclass
class _Same:
    """How many losses there were, as long as all are the same; and the decimals they have."""

    first: float | None = None
    onset: int = 0
    count: int = 0
    decimals: int = 0
    _last_step: int | None = None

    def see(self, step: int, loss: float) -> None:
        self.decimals = max(self.decimals, decimals(loss))
        if self.first is None:
            self.first, self.onset = loss, step
        if loss != self.first:
            # Losses that repeat later on have converged.
            self.first, self.count = math.nan, 0
        elif step != self._last_step:
            self.count += 1
        self._last_step = step


class _Departures:
    """Bets that a series of positive values has left its level upwards."""

    def __init__(self) -> None:
        most = LIMITS.history + LIMITS.window
        #: Logarithms of the last values, and the steps that each of them reports on.
        self._values: deque[float] = deque(maxlen=most)
        self._steps: deque[tuple[int, int]] = deque(maxlen=most)
        self._last_step: int | None = None
        self._bets = 0

    def begin_at(self, value: float) -> None:
        """Take the untouched model's loss as the level before the first report."""
        self._last_step = 0
        self._append(0, value)

    def see(self, step: int, value: float) -> tuple[float, int, float] | None:
        """The level before, the first step and the wealth of a bet that has won."""
        if self._last_step in (None, 0) and step <= 1:
            # Nothing is trained yet: this, not the validation's, is the level of these rows.
            self._values.clear()
            self._steps.clear()
        self._bets += bool(self._values)
        self._append(step, value)
        values = list(self._values)
        for reports in range(min(LIMITS.window, len(values) - 1), 0, -1):
            if (departure := self._won(values, reports)) is not None:
                return departure
        return None

    def _append(self, step: int, value: float) -> None:
        per_report = step - self._last_step if self._last_step is not None else 1
        self._last_step = step
        self._values.append(_logarithm(value))
        self._steps.append((step, max(per_report, 1)))

    def _won(self, values: Sequence[float], reports: int) -> tuple[float, int, float] | None:
        """The bet on the last reports, so many of them, where it has won."""
        before, of_bet = values[:-reports][-LIMITS.history :], values[-reports:]
        level = median(before[-LIMITS.level :])
        mean = sum(of_bet) / reports - level
        # A spike of two reports is over at the third.
        if of_bet[-1] - level < math.log(LIMITS.last_ratio) or mean < math.log(LIMITS.least_ratio):
            return None
        steps = list(self._steps)[-reports:]
        reached = math.exp(min(level + mean, math.log(LARGEST)))
        if (
            reached - math.exp(level) < LIMITS.least_change
            or sum(per_report for _, per_report in steps) < LIMITS.least_steps
        ):
            return None
        of_report = LIMITS.noise_of_one_step / math.sqrt(steps[0][1])
        sigma = max(math.hypot(LIMITS.noise_floor, of_report), noise(np.array(before)))
        wealth = math.prod(_factor((value - level) / sigma) for value in of_bet)
        is_first = self._bets - reports < LIMITS.first_bets
        if wealth < (LIMITS.first_wealth if is_first else LIMITS.wealth):
            return None
        return math.exp(level), steps[0][0], wealth


class _Speeds:
    """How fast the training goes, and whether that has collapsed for good."""

    def __init__(self, memory_gb: float | None) -> None:
        self._memory_gb = memory_gb
        #: Iterations a second of the last reports.
        self._last: deque[float] = deque(maxlen=SPEED_REPORTS)
        self._tokens: tuple[int, float] | None = None
        self._last_step = 0
        self._ordinary: deque[float] = deque(maxlen=LIMITS.speed_level)
        self._slow = _Streak()
        self._slow_seconds, self._slow_speeds = 0.0, list[float]()

    def see(self, row: LogRow, unit: str) -> Alarm | None:
        """An alarm where the speed collapsed after it had been steady."""
        values, seconds = row.values, self._seconds(row)
        name = next(
            (f"{one}s" for one in ("token", "iteration") if f"{one}s_per_second" in values), ""
        )
        speed = values.get(f"{name}_per_second", math.nan)
        if not _is_usable(speed):
            return None
        level = median(self._ordinary) if len(self._ordinary) >= LIMITS.slow_reports else 0.0
        is_slow = speed * LIMITS.slower <= level
        self._slow.see(row.step, speed, is_slow)
        if not is_slow:
            self._ordinary.append(speed)
            self._slow_seconds, self._slow_speeds = 0.0, []
            return None
        self._slow_seconds += seconds
        self._slow_speeds.append(speed)
        if self._slow.length < LIMITS.slow_reports or self._slow_seconds < LIMITS.slow_seconds:
            return None
        reached = median(self._slow_speeds)
        message = (
            f"the speed fell from {level:.3g} to {reached:.3g} {name} a second at {unit} "
            f"{self._slow.onset:,} and stayed there for {self._slow.length} reports"
        )
        measured = {"speed_before": level, "speed": reached, "seconds": self._slow_seconds}
        peak = values.get("peak_memory_gb")
        if peak is not None:
            message += f"; peak memory is {peak:.3g} GB"
            measured["peak_memory_gb"] = peak
            if self._memory_gb is not None:
                near = peak >= LIMITS.near_memory * self._memory_gb
                message += f" of the machine's {self._memory_gb:.3g}"
                message += "" if near else ", so look for what else runs on it"
        return Alarm(AlarmKind.SWAPPING, row.step, self._slow.onset, message, measured)

    def savings(self, step: int, iterations: int | None, unit: str) -> Savings:
        """What is left after a report, at the speed of the last ones."""
        if iterations is None or iterations < step:
            return Savings()
        seconds = (iterations - step) / median(self._last) if self._last else math.inf
        return Savings(iterations - step, seconds if math.isfinite(seconds) else None, unit)

    def _seconds(self, row: LogRow) -> float:
        """How many seconds the report's iterations took; 0 where it does not say."""
        speed = row.values.get("iterations_per_second")
        rate, trained = row.values.get("tokens_per_second"), row.values.get("trained_tokens")
        if speed is None and rate is not None and trained is not None and self._tokens is not None:
            # The table of newer mlx-lm has no iterations a second; tokens tell it.
            steps, tokens = row.step - self._tokens[0], trained - self._tokens[1]
            speed = rate * steps / tokens if tokens > 0 else None
        if trained is not None:
            self._tokens = (row.step, trained)
        if speed is None or not _is_usable(speed):
            return 0.0
        steps, self._last_step = row.step - self._last_step, row.step
        self._last.append(speed)
        return max(steps, 0) / speed


def _is_usable(value: float) -> bool:
    """Whether a value has a logarithm."""
    return math.isfinite(value) and value > 0


def _logarithm(value: float) -> float:
    """The natural logarithm; of values that no training has, that of the nearest one."""
    return math.log(min(max(value, SMALLEST), LARGEST))


def _factor(z: float) -> float:
    """By what one report multiplies the wealth: `z` is in units of the noise."""
    exponent = LIMITS.stake * z - LIMITS.stake**2 / 2
    return math.exp(min(exponent, math.log(LIMITS.cap)))


def _chance(wealth: float) -> str:
    return f"by chance that happens in fewer than 1 of {min(wealth, 1e9):,.0f} such tests"
