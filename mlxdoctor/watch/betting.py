"""A sequential test by betting: is a series still at the level that it had reached?

A bet begins at every report: with a stake of 1, on the claim that the series left its level
upwards just now. Each report z of the bet (in units of the noise, above the level frozen at
the bet's begin) multiplies the wealth by exp(a z - a^2/2), at most by `cap`. While the
series stays at or below its level that factor has a mean of at most 1, so no bet ever
reaches a wealth of W with a probability over 1/W (Ville 1939; Shafer 2021; for changes at an
unknown time Shin, Ramdas and Rinaldo 2023). One look or a thousand makes no difference.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from mlxdoctor.watch.limits import BettingLimits

#: Values outside these are taken to be the nearest of them: a log may hold any number.
SMALLEST, LARGEST = 1e-30, 1e30


@dataclass(frozen=True)
class Departure:
    """A bet that won.

    Attributes:
        onset: step of the bet's first report.
        reports: how many reports it took.
        level: of the series before, in its own unit.
        reached: geometric mean over the bet's reports.
        wealth: what a stake of 1 became.
        seconds: how long the bet lasted, where the caller says how long a report took.
    """

    onset: int
    reports: int
    level: float
    reached: float
    wealth: float
    seconds: float = 0.0


@dataclass(slots=True)
class _Bet:
    onset: int
    level: float
    noise: float
    needed: float
    wealth: float = 1.0
    reports: int = 0


class Bets:
    """The bets on one series of positive values.

    Args:
        limits: stakes and thresholds.
        sign: 1 where the alarm is about a rise, -1 where it is about a fall.
        least_history: reports before the first bet.
    """

    def __init__(self, limits: BettingLimits, sign: int = 1, least_history: int = 1) -> None:
        self._limits = limits
        self._sign = sign
        self._least = least_history
        self._most = math.log(limits.cap)
        # A speed that recovers once has not collapsed; a loss may dip while it explodes.
        self._least_each = math.log(limits.least_ratio) if sign < 0 else -math.inf
        #: What is left of the wealth to win, after so many reports, where all others bring the
        #: most: a bet with less is over.
        left = [limits.window - one for one in range(limits.window)]
        self._reach = [*(math.exp(-one * self._most) for one in left), math.inf]
        self._recent: deque[float] = deque(maxlen=limits.history)
        #: Logarithm, steps and seconds of the reports that an open bet may have seen.
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=limits.window)
        self._open: list[_Bet] = []
        self._begun = 0
        #: The factor of the newest bet's first report: over sound runs its mean shows whether
        #: the bets are fair.
        self.newest_factor: float | None = None

    @property
    def nearest_to_winning(self) -> float:
        """The largest wealth of the open bets, as a share of what it would have to be."""
        return max((bet.wealth / bet.needed for bet in self._open), default=0.0)

    def begin_at(self, value: float | None) -> None:
        """Take a value as the level before the first report; None for "not known after all"."""
        self._recent.clear()
        if value is not None:
            self._recent.append(logarithm(value))

    def see(
        self, step: int, value: float, steps_per_report: float, seconds: float = 0.0
    ) -> Departure | None:
        """Judge one more value, which took so many seconds; a departure where a bet has won."""
        seen = logarithm(value)
        self.newest_factor = None
        if len(self._recent) >= self._least:
            self._begin(step, seen, steps_per_report)
        self._seen.append((seen, max(steps_per_report, 1.0), seconds))
        won, left = None, []
        for bet in self._open:
            above = self._sign * (seen - bet.level)
            bet.wealth *= _factor(above / bet.noise, self._limits.stake, self._most)
            bet.reports += 1
            if won is None and bet.wealth >= bet.needed:
                won = self._won(bet)
            if above > self._least_each and bet.wealth >= bet.needed * self._reach[bet.reports]:
                left.append(bet)
        if self._open and self._open[-1].reports == 1:
            self.newest_factor = self._open[-1].wealth
        self._recent.append(seen)
        self._open = left
        return won

    def _begin(self, step: int, seen: float, steps_per_report: float) -> None:
        limits = self._limits
        self._begun += 1
        level = median(list(self._recent)[-limits.level :])
        if self._sign * (seen - level) <= self._least_each:
            return
        of_report = limits.noise_of_one_step / math.sqrt(max(steps_per_report, 1.0))
        noise = max(math.hypot(limits.noise_floor, of_report), _noise(self._recent))
        needed = limits.first_wealth if self._begun <= limits.first_starts else limits.wealth
        self._open.append(_Bet(step, level, noise, needed))

    def _won(self, bet: _Bet) -> Departure | None:
        limits = self._limits
        seen, steps, seconds = zip(*list(self._seen)[-bet.reports :], strict=True)
        lasted = sum(seconds)
        if lasted < limits.least_seconds or sum(steps) < limits.least_steps:
            return None
        above = [self._sign * (one - bet.level) for one in seen]
        mean = sum(above) / bet.reports
        level, reached = math.exp(bet.level), math.exp(bet.level + self._sign * mean)
        # A spike of two reports is over at the third.
        if (
            min(mean, *above) < self._least_each
            or mean < math.log(limits.least_ratio)
            or above[-1] < math.log(limits.last_ratio)
            or abs(reached - level) < limits.least_change
        ):
            return None
        return Departure(bet.onset, bet.reports, level, reached, bet.wealth, lasted)


def logarithm(value: float) -> float:
    """The natural logarithm; of losses that no training has, that of the nearest one."""
    return math.log(min(max(value, SMALLEST), LARGEST))


def factor(z: float, limits: BettingLimits) -> float:
    """By what one report multiplies the wealth: `z` is in units of the noise."""
    return _factor(z, limits.stake, math.log(limits.cap))


def _factor(z: float, stake: float, most: float) -> float:
    exponent = stake * z - stake**2 / 2
    return math.exp(exponent if exponent < most else most)


def _noise(values: Sequence[float]) -> float:
    """How far neighbours lie apart by chance: what a steady trend adds is left out."""
    changes = [after - before for before, after in pairwise(values)]
    # The spread of two changes says nothing, and one of zero would make every bet win.
    if len(changes) < 3:
        return 0.0
    middle = median(changes)
    # 1.48 median absolute deviations are a standard deviation; a change has two reports' noise.
    return 1.4826 * median([abs(one - middle) for one in changes]) / math.sqrt(2)
