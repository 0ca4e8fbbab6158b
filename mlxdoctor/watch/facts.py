"""What needs no statistics: losses that are no number, exactly zero, or the same again."""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass

from mlxdoctor.engines.series import decimals
from mlxdoctor.watch.betting import LARGEST, logarithm
from mlxdoctor.watch.limits import FactLimits
from mlxdoctor.watch.reports import Alarm, AlarmKind, LogRow

#: Losses, and what a person calls them.
_LOSSES = {"train_loss": "training", "val_loss": "validation"}


class NonFinite:
    """NaN and infinities in losses and gradient norms."""

    def __init__(self, limits: FactLimits) -> None:
        self._limits = limits
        self._had_validation = False
        self._norms = _Streak()

    def see(self, report: LogRow) -> Alarm | None:
        """An alarm at the first training loss, or validation loss after a finite one."""
        # Without validation rows the trainer prints NaN although the model is sound.
        told = ("train_loss", "val_loss") if self._had_validation else ("train_loss",)
        for name in told:
            loss = report.values.get(name, 0.0)
            if not math.isfinite(loss):
                message = f"the {_LOSSES[name]} loss is {loss}"
                return Alarm(AlarmKind.NON_FINITE, report.step, report.step, message, {name: loss})
        self._had_validation |= math.isfinite(report.values.get("val_loss", math.nan))
        norm = report.values.get("grad_norm")
        if norm is None:
            return None
        streak = self._norms.see(report.step, not math.isfinite(norm))
        if streak.length < self._limits.bad_norms:
            return None
        message = f"the gradient norm was {norm} in {streak.length} reports in a row"
        measured = {"grad_norm": norm}
        return Alarm(AlarmKind.NON_FINITE, report.step, streak.onset, message, measured)


class ExactZero:
    """Training losses of exactly zero."""

    def __init__(self, limits: FactLimits) -> None:
        self._limits = limits
        self._streak = _Streak()
        self._before = math.inf

    def see(self, report: LogRow) -> Alarm | None:
        """An alarm at the second report of zero, unless the loss was near it already."""
        loss = report.values.get("train_loss")
        if loss is None:
            return None
        if loss > 0:
            self._before = loss
        streak = self._streak.see(report.step, loss == 0)
        if streak.length < self._limits.zero_reports or self._before < self._limits.zero_after:
            return None
        return Alarm(
            AlarmKind.EXACT_ZERO,
            report.step,
            streak.onset,
            f"the training loss was exactly 0 in {streak.length} reports in a row",
            {"train_loss": 0.0, "reports": streak.length},
        )


class Frozen:
    """A model that no step changes: a rate or gradient of zero, or losses that repeat."""

    def __init__(self, limits: FactLimits) -> None:
        self._limits = limits
        self._rates, self._norms = _Streak(), _Streak()
        self._had_rate = False
        self._decimals = dict.fromkeys(_LOSSES, 0)
        self._repeats = {
            "train_loss": _Repeats(limits, from_start=False),
            # Validated on the same rows: a loss that converges may repeat, the first may not.
            "val_loss": _Repeats(limits, from_start=True),
        }

    def see(self, report: LogRow) -> Alarm | None:
        """An alarm where that can't be chance."""
        step, limits = report.step, self._limits
        rate, norm = report.values.get("learning_rate"), report.values.get("grad_norm")
        if rate is not None:
            self._had_rate = self._had_rate or rate != 0
            streak = self._rates.see(step, rate == 0 and not self._had_rate)
            # Micro-batches before the first update of a warm-up report a rate of 0 too.
            if streak.length >= limits.zero_rates and step >= limits.zero_rate_steps:
                message = f"the learning rate was exactly 0 in all {streak.length} reports"
                return _frozen(step, streak.onset, message, learning_rate=0.0)
        if norm is not None:
            streak = self._norms.see(step, norm == 0)
            if streak.length >= limits.bad_norms:
                message = f"the gradient norm was exactly 0 in {streak.length} reports in a row"
                return _frozen(step, streak.onset, message, grad_norm=0.0)
        for name, repeats in self._repeats.items():
            loss = report.values.get(name)
            if loss is None or not math.isfinite(loss) or loss <= 0:
                continue
            self._decimals[name] = max(self._decimals[name], decimals(loss))
            if count := repeats.see(step, loss, self._digits(name)):
                said = f"the {_LOSSES[name]} loss was {loss:g} to the last digit"
                measured = {name: loss, "reports": count}
                return _frozen(step, repeats.onset, f"{said} {count} times in a row", **measured)
        return None

    def _digits(self, name: str) -> int:
        """Decimals that a loss is printed with; a zero at the end of one can't be seen."""
        own, most = self._decimals[name], max(self._decimals.values())
        return most if most == own + 1 else own


@dataclass
class _Streak:
    """How many reports in a row had a property, and since which step."""

    length: int = 0
    onset: int = 0

    def see(self, step: int, holds: bool) -> _Streak:
        if holds and self.length == 0:
            self.onset = step
        self.length = self.length + 1 if holds else 0
        return self


class _Repeats:
    """Losses that are the same to the last digit.

    Two losses that differ by chance agree with a probability of about resolution / (2 sqrt(pi)
    noise): the wealth of the bet on "not by chance" is one over it. The noise is what the
    losses moved by before; where they never moved, what those of a training that learns do.

    Args:
        from_start: only losses that equal the first one count.
    """

    def __init__(self, limits: FactLimits, *, from_start: bool) -> None:
        self._limits = limits
        self._from_start = from_start
        self._streak = _Streak(0)
        self._moves: deque[float] = deque(maxlen=limits.moves)
        self._last: tuple[int, float] | None = None
        self._wealth = 1.0

    @property
    def onset(self) -> int:
        return self._streak.onset

    def see(self, step: int, loss: float, decimals: int) -> int:
        """How many equal losses there are, once that can't be chance; else 0."""
        if self._last is None:
            self._streak.see(step, True)
        elif step != self._last[0]:
            self._compare(step, loss, decimals)
        self._last = step, loss
        limits = self._limits
        needed = limits.same_start_wealth if self._from_start else limits.same_wealth
        return self._streak.length if self._wealth >= needed else 0

    def _compare(self, step: int, loss: float, decimals: int) -> None:
        limits, resolution = self._limits, 10.0**-decimals
        before = self._last[1] if self._last is not None else loss
        if loss != before:
            # A loss that was printed the same moved by half of its last digit, say.
            self._moves.extend([resolution / 2 / before] * (self._streak.length - 1))
            self._moves.append(abs(logarithm(loss) - logarithm(before)))
            self._streak, self._wealth = _Streak(1, step), 1.0
            return
        if (self._from_start and self._moves) or resolution > limits.coarsest * loss:
            return
        moved = sorted(self._moves)
        noise = min([limits.moving_noise, *moved[len(moved) // 2 : len(moved) // 2 + 1]])
        spread = noise * min(loss, LARGEST)
        # Beside an enormous loss it would be zero.
        by_chance = max(resolution / (2 * math.sqrt(math.pi) * spread), sys.float_info.min)
        # Half precision has fewer digits than are printed; a mean over rows has them all.
        exact = self._from_start and decimals >= limits.exact_decimals
        self._wealth *= min(1 / by_chance, math.inf if exact else limits.same_cap)
        self._streak.length += 1


def _frozen(step: int, onset: int, message: str, **measured: float) -> Alarm:
    return Alarm(AlarmKind.FROZEN, step, onset, message, measured)
