"""The watch on one training: reports go in, and the first alarm beyond doubt comes out."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from statistics import median

from mlxdoctor.evidence.logs.series import is_preference
from mlxdoctor.watch.betting import Bets, factor, logarithm
from mlxdoctor.watch.facts import ExactZero, Frozen, NonFinite
from mlxdoctor.watch.limits import BettingLimits, Limits, SpeedLimits
from mlxdoctor.watch.reports import Alarm, AlarmKind, Best, LogRow, Savings

#: Last reports whose median speed tells how long the rest would take.
SPEED_REPORTS = 5


class Watch:
    """Judges the reports of one log, in order. A restart within it begins anew.

    Args:
        iterations: how long the training is to be, where that is known.
        memory_gb: of the machine that trains, where that is known.
        limits: when an alarm is raised.
        patience: validations without a lower loss that raise an alarm; None for any number.
    """

    def __init__(
        self,
        iterations: int | None = None,
        memory_gb: float | None = None,
        limits: Limits | None = None,
        patience: int | None = None,
    ) -> None:
        self._patience = patience
        self.iterations = iterations
        self._memory_gb = memory_gb
        self._limits = limits or Limits()
        self._runs: dict[str, _Training] = {}

    @property
    def standing(self) -> Alarm | None:
        """The first alarm of the trainings that have not begun anew since."""
        return next((one.alarm for one in self._runs.values() if one.alarm is not None), None)

    @property
    def trained_to(self) -> int:
        """The last step of the training that is furthest."""
        return max((one.last_step for one in self._runs.values()), default=0)

    @property
    def best(self) -> Best | None:
        """The best validation of the training that was validated last; None without one."""
        known = [one.improving.best for one in self._runs.values() if one.improving.best]
        return known[-1] if known else None

    def see(self, report: LogRow) -> Alarm | None:
        """Judge one more report; an alarm where it leaves no doubt."""
        training = self._runs.get(report.run)
        if training is None or training.is_restart(report):
            training = _Training(self._limits, self._memory_gb, self._patience)
            self._runs[report.run] = training
        alarm = training.see(report)
        if alarm is None:
            return None
        savings = training.pace.savings(report, self.iterations)
        alarm = replace(alarm, savings=savings, run=report.run, unit=report.unit)
        training.alarm = training.alarm or alarm
        return alarm


class _Training:
    """One run of a trainer, from its first report."""

    def __init__(self, limits: Limits, memory_gb: float | None, patience: int | None) -> None:
        self.pace = _Pace()
        self.improving = Improving(patience)
        self.alarm: Alarm | None = None
        self.last_step = -1
        facts = limits.facts
        self._judges = (NonFinite(facts), ExactZero(facts), Frozen(facts), Diverging(limits.losses))
        self._swapping = Swapping(limits.speeds, memory_gb)

    def is_restart(self, report: LogRow) -> bool:
        """Whether the training steps begin again before those that were seen."""
        return "train_loss" in report.values and report.step < self.last_step

    def see(self, report: LogRow) -> Alarm | None:
        if "train_loss" in report.values:
            self.last_step = report.step
        seconds = self.pace.see(report)
        # Each judge sees every report, also where another has raised the alarm.
        alarms = [judge.see(report) for judge in self._judges]
        alarms.append(self._swapping.see(report, seconds))
        alarms.append(self.improving.see(report))
        return next((alarm for alarm in alarms if alarm is not None), None)


class Diverging:
    """A training loss that leaves the level it had reached, upwards; or a harmed model."""

    def __init__(self, limits: BettingLimits) -> None:
        self.bets = Bets(limits)
        self._limits = limits
        self._base: float | None = None
        self._harm = 1.0
        self._last_step: int | None = None

    def see(self, report: LogRow) -> Alarm | None:
        """An alarm where a bet on a rise has won."""
        if is_preference(tuple(report.values)):
            return None
        validation, loss = report.values.get("val_loss"), report.values.get("train_loss")
        alarm = None
        if validation is not None and usable(validation):
            alarm = self._validated(report.step, validation)
        if loss is not None and usable(loss):
            alarm = self._trained(report, loss) or alarm
        return alarm

    def _trained(self, report: LogRow, loss: float) -> Alarm | None:
        step = report.step
        if self._last_step in (None, 0) and step <= 1:
            # Nothing is trained yet: this, not the validation's, is the level of these rows.
            self.bets.begin_at(None)
        per_report = step - self._last_step if self._last_step is not None else 1
        self._last_step = step
        found = self.bets.see(step, loss, per_report)
        if found is None:
            return None
        message = (
            f"the training loss left its level of {found.level:.3f} at {report.unit} "
            f"{found.onset:,} and is {loss:.3f} now; {_chance(found.wealth)}"
        )
        measured = {"level": found.level, "train_loss": loss, "wealth": found.wealth}
        return Alarm(AlarmKind.DIVERGING, step, found.onset, message, measured)

    def _validated(self, step: int, loss: float) -> Alarm | None:
        if self._base is None:
            # The untouched model's own loss. Training that begins above it is no start.
            if self._last_step is None and step <= 1:
                self._base, self._last_step = loss, 0
                self.bets.begin_at(loss)
            return None
        above = logarithm(loss) - logarithm(self._base)
        self._harm *= factor(above / self._limits.noise_floor, self._limits)
        if self._harm < self._limits.first_wealth or above < math.log(self._limits.harmed_ratio):
            return None
        message = (
            f"the validation loss is {loss:.3f}, above the {self._base:.3f} of the untouched "
            f"model; {_chance(self._harm)}"
        )
        measured = {"level": self._base, "val_loss": loss, "wealth": self._harm}
        return Alarm(AlarmKind.DIVERGING, step, step, message, measured)


class Improving:
    """Which validation was best, and how many came after it."""

    def __init__(self, patience: int | None) -> None:
        self.best: Best | None = None
        self._patience = patience

    def see(self, report: LogRow) -> Alarm | None:
        """An alarm where the validation loss has not improved for too long."""
        loss = report.values.get("val_loss")
        if loss is None or not math.isfinite(loss) or is_preference(tuple(report.values)):
            return None
        best = self.best
        if best is None or loss < best.loss:
            validations = best.validations + 1 if best is not None else 1
            self.best = Best(loss, report.step, 0, loss, validations, unit=report.unit)
            return None
        best = Best(
            best.loss, best.step, best.since + 1, loss, best.validations + 1, best.save, best.unit
        )
        self.best = best
        if self._patience is None or best.since < self._patience:
            return None
        measured = {"best_val_loss": best.loss, "best_step": best.step, "val_loss": loss}
        return Alarm(AlarmKind.NOT_IMPROVING, report.step, best.step, str(best), measured)


class Swapping:
    """A speed that collapses for good, after it had been steady."""

    def __init__(self, limits: SpeedLimits, memory_gb: float | None) -> None:
        self._limits = limits
        self._memory_gb = memory_gb
        self._bets: dict[str, Bets] = {}

    def see(self, report: LogRow, seconds: float) -> Alarm | None:
        """An alarm where a bet on a collapse has won; the report took so many seconds."""
        values = report.values
        names = ("tokens_per_second", "iterations_per_second")
        name = next((name for name in names if values.get(name) is not None), None)
        if name is None or not usable(values[name]):
            return None
        limits = self._limits
        if name not in self._bets:
            self._bets[name] = Bets(limits, -1, limits.least_history)
        found = self._bets[name].see(report.step, values[name], 1.0, seconds)
        if found is None:
            return None
        unit = "tokens" if name.startswith("tokens") else "iterations"
        message = (
            f"the speed fell from {found.level:.3g} to {found.reached:.3g} {unit} a second at "
            f"{report.unit} {found.onset:,} and stayed there for {found.reports} reports"
        )
        measured = {"speed_before": found.level, "speed": found.reached, "seconds": found.seconds}
        peak = values.get("peak_memory_gb")
        if peak is not None:
            message += f"; peak memory is {peak:.3g} GB"
            measured["peak_memory_gb"] = peak
            if self._memory_gb is not None:
                near = peak >= limits.near_memory * self._memory_gb
                message += f" of the machine's {self._memory_gb:.3g}"
                message += "" if near else ", so look for what else runs on it"
        return Alarm(AlarmKind.SWAPPING, report.step, found.onset, message, measured)


class _Pace:
    """How fast the training goes, from its own reports."""

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=SPEED_REPORTS)
        self._tokens: tuple[int, float] | None = None
        self._last_step = 0

    def see(self, report: LogRow) -> float:
        """How many seconds the report's iterations took; 0 where it does not say."""
        values = report.values
        speed = values.get("iterations_per_second")
        rate, trained = values.get("tokens_per_second"), values.get("trained_tokens")
        if speed is None and rate is not None and trained is not None and self._tokens is not None:
            # The table of newer mlx-lm has no iterations a second; tokens tell it.
            steps, tokens = report.step - self._tokens[0], trained - self._tokens[1]
            speed = rate * steps / tokens if tokens > 0 else None
        if trained is not None:
            self._tokens = (report.step, trained)
        if speed is None or not usable(speed):
            return 0.0
        steps, self._last_step = report.step - self._last_step, report.step
        self._speeds.append(speed)
        return max(steps, 0) / speed

    def savings(self, report: LogRow, iterations: int | None) -> Savings:
        """What is left after a report, at the speed of the last ones."""
        if iterations is None or iterations < report.step:
            return Savings()
        left = iterations - report.step
        seconds = left / median(self._speeds) if self._speeds else math.inf
        return Savings(left, seconds if math.isfinite(seconds) else None, report.unit)


def _chance(wealth: float) -> str:
    return f"by chance that happens in fewer than 1 of {min(wealth, 1e9):,.0f} such tests"


def usable(value: float) -> bool:
    """Whether a value has a logarithm."""
    return math.isfinite(value) and value > 0
