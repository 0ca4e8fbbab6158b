"""The watch on one training, which judges every report and raises an alarm if there is no doubt.

Each report is compared with the entries of the checks' tables that name an alarm
(`checks/series_facts.toml` says how), as `diagnose` does. Only the first and the last reports are
kept. Levels are medians of three, so that a spike of one or two raises no alarm.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from mlxdoctor.evidence.logs.series import Axis, Segment, Series, is_preference
from mlxdoctor.finding import Measurement
from mlxdoctor.formats.summary import sentence
from mlxdoctor.judge.curve import loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable, reaches_any
from mlxdoctor.template import fill
from mlxdoctor.watch.alarms import Alarm, AlarmKind, Best

#: The tables whose entries raise alarms, the surest first.
TABLES = tuple(
    SeriesTable.read(name) for name in ("loss_finite.toml", "loss_trend.toml", "series_facts.toml")
)
RULES = tuple(
    (table, pattern, rule, name)
    for table in TABLES
    for pattern in table.patterns
    if (rule := pattern.alarm) is not None
    for name in pattern.series
)
#: The columns that have a rule.
JUDGED = frozenset(name for *_, name in RULES)
#: The first and the last reports of a column that are kept.
HEAD, TAIL = 3, 16
#: Fewest reports for which `SeriesFacts.end` is the median of three.
LEVELS = 15
#: Least share of a loss's fall that is lost again if a rule of the tables holds.
WAY_BACK = 0.4
#: Last reports whose median speed predicts the time of the rest.
SPEED_REPORTS = 5
#: The advice of an alarm on validation losses that do not improve.
NO_BETTER = (
    "Stop it, and use the save nearest to the best validation; train shorter, on more rows or at a "
    "lower learning rate."
)
#: Largest iteration that is kept: a log may have any number.
LAST_STEP = 2**62


@dataclass(frozen=True)
class LogRow:
    """One report of a training.

    Attributes:
        values: canonical metric name -> value (see `Segment`); NaN if the log has NaN.
    """

    step: int
    values: Mapping[str, float]


@dataclass
class _Kept:
    """The first and the last reports of a column."""

    head: list[tuple[int, float]] = field(default_factory=list)
    tail: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=TAIL))

    def add(self, step: int, value: float) -> None:
        step = max(-LAST_STEP, min(step, LAST_STEP))
        (self.head if len(self.head) < HEAD else self.tail).append((step, value))

    def series(self) -> Series:
        steps, values = zip(*self.head, *self.tail, strict=True)
        return Series(np.array(steps, np.int64), np.array(values, np.float64))

    def kinds(self, value: float, base: float) -> frozenset[str]:
        """The kinds of a new value, compared with the kept ones; see `AlarmRule.newest`.

        Args:
            value: the new value.
            base: the first validation loss; infinite if there is none.
        """
        if not math.isfinite(value):
            return frozenset({"not-finite"})
        first = [kept for _, kept in self.head if math.isfinite(kept)]
        before = first + [kept for _, kept in self.tail if math.isfinite(kept)]
        kinds = {
            "zero": value == 0.0,
            "same": bool(before) and value == min(before) == max(before),
            "high": len(before) < HEAD or value > median(before[-TAIL:]),
            "low": bool(before) and value < max(before) / 2.0,
        }
        if kinds["high"] and len(before) >= LEVELS:
            # All rules need a rise by at least this share of the fall.
            lowest, start = min(*before, value), min(first[0], median(first), base)
            level = median([*before[-2:], value])
            kinds["high"] = level - lowest >= WAY_BACK * (start - lowest)
        return frozenset(kind for kind, holds in kinds.items() if holds)


class _Clock:
    """How long reports take, by the speed that they state."""

    def __init__(self) -> None:
        #: Step, seconds and iterations a second of the last reports.
        self._reports: deque[tuple[int, float, float]] = deque(maxlen=HEAD + TAIL)
        self._tokens: tuple[int, float] | None = None
        self._last_step = 0

    def see(self, row: LogRow) -> None:
        speed = row.values.get("iterations_per_second")
        rate, trained = row.values.get("tokens_per_second"), row.values.get("trained_tokens")
        if speed is None and rate is not None and trained is not None and self._tokens is not None:
            # Newer mlx-lm's table has no iterations a second: they follow from the tokens.
            steps, tokens = row.step - self._tokens[0], trained - self._tokens[1]
            speed = rate * steps / tokens if tokens > 0 else None
        if trained is not None:
            self._tokens = (row.step, trained)
        if speed is not None and math.isfinite(speed) and speed > 0.0:
            steps, self._last_step = row.step - self._last_step, row.step
            self._reports.append((row.step, max(steps, 0) / speed, speed))

    def seconds_since(self, step: int) -> float:
        """The seconds of the reports from a step on."""
        return sum(seconds for reported, seconds, _ in self._reports if reported >= step)

    def seconds_of(self, steps: int) -> float | None:
        """How long further steps take at the speed of the last reports; None if that is unknown."""
        speeds = [speed for _, _, speed in self._reports][-SPEED_REPORTS:]
        seconds = steps / median(speeds) if speeds else math.inf
        return seconds if math.isfinite(seconds) else None


@dataclass
class Watch:
    """Judges the reports of one training, in order.

    Attributes:
        iterations: the planned length of the training; None if unknown.
        patience: validations without a lower loss that raise an alarm; None for no alarm.
        unit: what the log counts.
        best: the best validation; None before the first.
    """

    iterations: int | None = None
    patience: int | None = None
    unit: str = "iteration"
    best: Best | None = None
    _columns: dict[str, _Kept] = field(default_factory=dict)
    _clock: _Clock = field(default_factory=_Clock)

    def see(self, row: LogRow) -> Alarm | None:
        """Judge one more report; an alarm if there is no doubt."""
        newest = dict[str, frozenset[str]]()
        validated = self._columns.get("val_loss")
        base = validated.head[0][1] if validated is not None else math.inf
        for name, value in row.values.items():
            kept = self._columns.setdefault(name, _Kept())
            if name in JUDGED:
                newest[name] = kept.kinds(value, base)
            kept.add(row.step, value)
        self._clock.see(row)
        not_improving = self._not_improving(row)
        alarm = next(self._alarms(row, newest), not_improving)
        if alarm is None:
            return None
        alarm = replace(alarm, unit=self.unit)
        if self.iterations is None or self.iterations < row.step:
            return alarm
        steps = self.iterations - row.step
        return replace(alarm, saved_steps=steps, saved_seconds=self._clock.seconds_of(steps))

    def _alarms(self, row: LogRow, newest: Mapping[str, frozenset[str]]) -> Iterator[Alarm]:
        columns: Columns | None = None
        for table, pattern, rule, name in RULES:
            if rule.newest not in newest.get(name, ()):
                continue
            columns = columns or self._described_columns()
            sign, figures = table.sign(pattern, name, columns, self.unit), columns.figures(name)
            if sign is None or not reaches_any(figures, rule.least):
                continue
            values = {**sign.measured, "onset": sign.onset}
            message = fill(pattern.symptom.says, values)
            advice = f"Stop it. {sentence(fill(pattern.symptom.fix, values))}"
            onset = figures.get(rule.onset)
            since = onset if isinstance(onset, int) else row.step
            yield Alarm(AlarmKind(rule.kind), row.step, since, message, advice, sign.measured)

    def _described_columns(self) -> Columns:
        series = {name: kept.series() for name, kept in self._columns.items()}
        axes: Mapping[str, Axis] = {"step": "step", "epoch": "epoch", "report": "row"}
        segment = Segment(series, 0, 0, axis=axes.get(self.unit, "iteration"))

        def more(name: str) -> Mapping[str, Measurement]:
            figures, jump = loss_figures(segment, name), series[name].facts.jump
            if jump is None:
                return figures
            return {**figures, "jump_seconds": self._clock.seconds_since(jump.iteration)}

        return Columns(series, more)

    def _not_improving(self, row: LogRow) -> Alarm | None:
        """An alarm if the validation loss has not improved for too long; updates `best`."""
        loss, best = row.values.get("val_loss"), self.best
        if loss is None or not math.isfinite(loss) or is_preference(row.values):
            return None
        if best is None or loss < best.val_loss:
            self.best = Best(loss, row.step, 0, loss, unit=self.unit)
            return None
        best = self.best = replace(
            best, validations_since=best.validations_since + 1, last_val_loss=loss
        )
        if self.patience is None or best.validations_since < self.patience:
            return None
        measured = {"best_val_loss": best.val_loss, "best_step": best.step, "val_loss": loss}
        message = sentence(str(best))
        return Alarm(AlarmKind.NOT_IMPROVING, row.step, best.step, message, NO_BETTER, measured)
