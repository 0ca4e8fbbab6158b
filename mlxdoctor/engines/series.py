"""One description for any series of numbers that a log holds.

Losses, rates, gradient norms, tokens, speed, memory, rewards: whatever a column measures, it can be
not finite, exactly zero, constant, repeated, or changed for good by a jump.
`describe` says which, where, and by how much; what that means is for a check to say.

Levels are medians of the first and of the last reports, so that no single batch decides. Where the
shape of a long series matters, it is reduced to the medians of `MAX_BLOCKS` blocks.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Iterations = NDArray[np.int64]

#: Values that the shape of a series is judged by.
MAX_BLOCKS = 400
#: Values whose printed decimals tell the last digit of a series.
MAX_PRINTED = 200
#: Reports that a level is a median of, at most.
MAX_EDGE = 10
#: Fewest reports that a level has to be left for, and fewest in all, for a rise for good.
MIN_STRETCH = 3
#: Standard deviation of a normal sample over its median absolute deviation.
MAD_TO_SD = 1.482602218505602
#: The 97.5% point of the normal distribution: intervals are 95%.
Z95 = 1.959963984540054
#: Probability below which losses that repeat are no chance; and that of one of them, at most:
#: half precision has 256 values an octave.
CHANCE, CHANCE_OF_ONE = 1e-8, 1 / 256
#: A series whose last digit is a larger part of it than this has too few digits to repeat.
COARSEST = 0.002
#: Places on the way of a series that are told, as shares of it, and values that are told singly.
STATIONS, MAX_STATIONS = (1 / 8, 1 / 4, 1 / 2, 3 / 4), 6
#: Noises of a report, and share of the highest beside it, by which a lone one stands out; and how
#: many on either side are beside it. It is told of 22 of 414 public logs, and speaks for no cause.
LONE, LONE_SHARE, BESIDE = 8.0, 0.5, 2
#: By how much of itself a loss moves from report to report in a training that learns.
STILL = 0.03


@dataclass(frozen=True)
class Places:
    """Where values of one kind stand in a series.

    Attributes:
        share: of all values.
        first: iteration of the first; None where there is none.
        at_end: how many such values the series ends with, in a row.
        end_begins: iteration of the first of those; None where there is none.
    """

    count: int
    share: float
    first: int | None
    at_end: int
    end_begins: int | None


@dataclass(frozen=True)
class Jump:
    """The largest change of level from one report to the next.

    Attributes:
        iteration: of the first report after it.
        before: median of all values before it.
        after: median of all values after it.
        is_kept: whether the last quarter of the series stays on the new side of the middle.
    """

    iteration: int
    before: float
    after: float
    is_kept: bool

    @property
    def factor(self) -> float:
        """The level after over the level before; NaN unless both are above 0."""
        return self.after / self.before if min(self.after, self.before) > 0.0 else math.nan


@dataclass(frozen=True)
class Repeats:
    """Values that are the same again after some reports, to the last digit.

    Attributes:
        period: after so many reports; 1 where all are the same.
        compared: reports that are the same as the one a period before.
    """

    period: int
    compared: int


@dataclass(frozen=True)
class SeriesFacts:
    """What a series of numbers says. Figures are of its finite values, unless it says otherwise.

    Attributes:
        count: of all values.
        points: of the finite ones.
        non_finite: where values are NaN or infinite.
        zeros: where values are exactly 0.
        is_constant: whether there are two values or more, and all are the same.
        repeats: whether the whole series repeats to the last digit, beyond chance.
        edge: how many values `start`, `end` and `minimum` are medians of.
        start, end: medians of the first and of the last values.
        minimum: the lowest median of `edge` values in a row; a single lucky batch does not count.
        minimum_at: the iteration in the middle of them.
        lowest, lowest_at: the lowest single value, and its iteration.
        highest, highest_at: the highest single value, and its iteration.
        tail_minimum: the lowest value in the last quarter.
        same: where the values of the end stand, which are all the same.
        noise: robust standard deviation of one value around the curve.
        decimals: after which the first 200 end, as they are printed; None where none is finite.
        onset: iteration from which on the series lies above its lowest level, to the end; None
            where it does not.
        jump: the largest change of level; None of fewer than two values, or of equal ones.
        records: share of the values in the second half that are above all before them.
    """

    count: int
    points: int
    non_finite: Places
    zeros: Places
    is_constant: bool = False
    repeats: Repeats | None = None
    edge: int = 0
    first: float = math.nan
    last: float = math.nan
    start: float = math.nan
    end: float = math.nan
    median: float = math.nan
    minimum: float = math.nan
    minimum_at: int = 0
    lowest: float = math.nan
    lowest_at: int = 0
    highest: float = math.nan
    highest_at: int = 0
    tail_minimum: float = math.nan
    same: Places | None = None
    noise: float = 0.0
    decimals: int | None = None
    onset: int | None = None
    jump: Jump | None = None
    records: float = 0.0

    @property
    def fall(self) -> float:
        """The share of the level at the start that is gone at the end; NaN unless it is above 0."""
        return 1.0 - self.end / self.start if self.start > 0.0 else math.nan


@dataclass(frozen=True)
class Trend:
    """A line through a series, robustly.

    Attributes:
        slope: the median of all pairwise slopes (Theil 1950, Sen 1968), units an iteration.
        low, high: its 95% interval, widened for autocorrelation; of fewer than four values it is
            infinite.
    """

    slope: float
    low: float
    high: float


# Differences of values near the largest number there is may overflow.
@np.errstate(over="ignore", invalid="ignore")
def describe(iterations: Iterations, values: Floats) -> SeriesFacts:
    """Describe float64 (n,) values, NaN and infinities among them, reported at int64 (n,)."""
    finite = np.isfinite(values)
    non_finite, zeros = places(iterations, ~finite), places(iterations, values == 0.0)
    x, y = iterations[finite], values[finite]
    count = len(y)
    if not count:
        return SeriesFacts(len(values), 0, non_finite, zeros)
    edge = max(1, min(MAX_EDGE, count // 5))
    sigma = noise(y)
    block_x, block_y = blocks(x, y)
    width = max(1, edge * len(block_y) // count)
    levels = smoothed(block_y, width)
    lowest_level = int(np.argmin(levels))
    minimum, minimum_at = float(levels[lowest_level]), int(block_x[lowest_level + width // 2])
    lowest, highest = int(np.argmin(y)), int(np.argmax(y))
    digits = max(decimals(float(value)) for value in y[:MAX_PRINTED])
    later_peaks = np.maximum.accumulate(y)[count // 2 :]
    return SeriesFacts(
        count=len(values),
        points=count,
        non_finite=non_finite,
        zeros=zeros,
        is_constant=count > 1 and float(np.ptp(y)) == 0.0,
        repeats=repeats(values, digits),
        edge=edge,
        first=float(y[0]),
        last=float(y[-1]),
        start=median(y[:edge]),
        end=median(y[-edge:]),
        median=median(y),
        minimum=minimum,
        minimum_at=minimum_at,
        lowest=float(y[lowest]),
        lowest_at=int(x[lowest]),
        highest=float(y[highest]),
        highest_at=int(x[highest]),
        tail_minimum=float(y[-max(1, count // 4) :].min()),
        same=places(x, y == y[-1]),
        noise=sigma,
        decimals=digits,
        onset=_rise_for_good(block_x, block_y, minimum, minimum_at, sigma),
        jump=_jump(block_x, block_y),
        records=float((np.diff(later_peaks) > 0.0).mean()) if len(later_peaks) > 1 else 0.0,
    )


def medians(values: Floats | Iterations) -> Floats:
    """What `np.median` makes of the last axis, without `numpy.ma`, which it loads."""
    middle = values.shape[-1] // 2
    first = middle - 1 + values.shape[-1] % 2
    # Numbers that are none come last.
    parted = np.partition(values, (first, middle, -1), axis=-1)
    means = parted[..., first : middle + 1].mean(axis=-1)
    return np.where(np.isnan(parted[..., -1]), np.nan, means)


def median(values: Floats | Iterations) -> float:
    """The median of (n,) values."""
    return float(medians(values))


def places(iterations: Iterations, flags: NDArray[np.bool_]) -> Places:
    """Where bool (n,) `flags` are set, at the iterations int64 (n,)."""
    set_at = np.flatnonzero(flags)
    if not len(set_at):
        return Places(0, 0.0, None, 0, None)
    unset = np.flatnonzero(~flags)
    end_begins = int(unset[-1]) + 1 if len(unset) else 0
    at_end = len(flags) - end_begins
    return Places(
        count=len(set_at),
        share=len(set_at) / len(flags),
        first=int(iterations[set_at[0]]),
        at_end=at_end,
        end_begins=int(iterations[end_begins]) if at_end else None,
    )


def noise(values: Floats) -> float:
    """Robust standard deviation of single values around a slowly moving curve.

    From second differences, which a line leaves at zero; their variance is six times
    that of the values. 0.0 with fewer than four values.
    """
    if len(values) < 4:
        return 0.0
    second = values[2:] - 2.0 * values[1:-1] + values[:-2]
    return MAD_TO_SD * median(np.abs(second)) / math.sqrt(6.0)


def decimals(value: float) -> int:
    """After how many decimals a number ends, as it is printed in full."""
    text = repr(value)
    return 17 if "e" in text else len(text.partition(".")[2])


def repeats(values: Floats, digits: int) -> Repeats | None:
    """Whether positive values, printed with so many digits, repeat; None if by chance they may.

    Two values that differ by chance agree with a probability of about
    resolution / (2 sqrt(pi) noise).
    """
    if len(values) < 3 or not np.isfinite(values).all() or values.min() <= 0.0:
        return None
    again = np.flatnonzero(values[1:] == values[0]) + 1
    period = next((int(p) for p in again if np.array_equal(values[p:], values[:-p])), None)
    resolution = 10.0**-digits
    if period is None or resolution > COARSEST * median(values):
        return None
    spread = float(np.std(values[:period])) if period > 1 else STILL * median(values)
    chance = min(max(resolution / (2 * math.sqrt(math.pi) * spread), CHANCE_OF_ONE), 1.0)
    compared = len(values) - period
    return Repeats(period, compared) if chance**compared <= CHANCE else None


def blocks(x: Iterations, y: Floats) -> tuple[Iterations, Floats]:
    """At most about `MAX_BLOCKS` points: each the first iteration and the median of a block."""
    width = max(-(-len(y) // MAX_BLOCKS), 1)
    whole = len(y) // width * width
    levels = medians(y[:whole].reshape(-1, width))
    if whole < len(y):
        levels = np.append(levels, median(y[whole:]))
    return x[::width], levels


def stations(iterations: Iterations, values: Floats, edge: int) -> list[tuple[int, float]]:
    """What a series passes between its first and its last value: iteration and level of each.

    Of few values all of them; else medians of `edge` values around an eighth, a quarter, a half and
    three quarters of the way, since losses fall fast at first.
    """
    count = len(values)
    if count <= MAX_STATIONS + 2:
        return [(int(iterations[i]), float(values[i])) for i in range(1, count - 1)]
    middles = sorted({max(int(share * (count - 1)), 1) for share in STATIONS})
    return [
        (int(iterations[middle]), median(values[max(middle - edge // 2, 1) :][:edge]))
        for middle in middles
    ]


def lone_peaks(iterations: Iterations, values: Floats) -> list[tuple[int, float]]:
    """Single reports far above the two on either side: iteration and value."""
    if len(values) < 2 * MIN_STRETCH:
        return []
    padded = np.pad(values, BESIDE, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * BESIDE + 1)
    beside = np.delete(around, BESIDE, axis=1).max(axis=1)
    is_far = values - beside > LONE_SHARE * np.abs(beside)
    others = np.where(is_far, beside, values)
    found = np.flatnonzero(is_far & (values - beside > LONE * noise(others)))
    return [(int(iterations[place]), float(values[place])) for place in found]


def smoothed(y: Floats, width: int) -> Floats:
    """Medians of `width` values in a row, float64 (n - width + 1,)."""
    return medians(np.lib.stride_tricks.sliding_window_view(y, width))


def trend(iterations: Iterations, values: Floats) -> Trend:
    """The Theil-Sen line through the finite values.

    The interval is Sen's (1968), its width times the root of what autocorrelation adds to the
    variance: (1 + rho) / (1 - rho) of a first-order process (Yue and Wang 2004). The estimated
    rho of residuals is too low by (1 + 4 rho) / n (Kendall 1954).
    """
    finite = np.isfinite(values)
    x, y = blocks(iterations[finite], values[finite])
    count = len(y)
    if count < 2 or x[0] == x[-1]:
        return Trend(0.0, -math.inf, math.inf)
    t = x.astype(np.float64)
    first, second = np.triu_indices(count, 1)
    apart = t[second] - t[first]
    slopes = np.sort((y[second] - y[first])[apart != 0.0] / apart[apart != 0.0])
    slope = median(slopes)
    if count < 4:
        return Trend(slope, -math.inf, math.inf)
    residuals = np.argsort(np.argsort(y - slope * t)).astype(np.float64)
    residuals -= residuals.mean()
    rho = float(residuals[1:] @ residuals[:-1]) / float(residuals @ residuals)
    rho += (1.0 + 4.0 * rho) / count
    rho = min(rho, 0.85) if rho > 1.0 / math.sqrt(count) else 0.0
    width = Z95 * math.sqrt((1.0 + rho) / (1.0 - rho))
    # Of Kendall's statistic, whose variance equal values make smaller.
    ties = sum(_kendall_variance(np.unique(one, return_counts=True)[1]) for one in (t, y))
    spread = width * math.sqrt(max(_kendall_variance(np.array([count])) - ties, 0.0))
    low = max(round((len(slopes) - spread) / 2.0) - 1, 0)
    high = min(round((len(slopes) + spread) / 2.0), len(slopes) - 1)
    return Trend(slope, float(slopes[low]), float(slopes[high]))


def _kendall_variance(counts: NDArray[np.int64]) -> float:
    return float(np.sum(counts * (counts - 1) * (2 * counts + 5))) / 18.0


def _rise_for_good(x: Iterations, y: Floats, level: float, since: int, sigma: float) -> int | None:
    """The iteration from which on the values lie above their lowest level to the end."""
    if len(y) < 2 * MIN_STRETCH:
        return None
    # The median of three: a lone value is no level.
    middle = smoothed(np.concatenate([y[:1], y, y[-1:]]), 3)
    is_above = middle > level + max(3.0 * sigma, 0.05 * abs(level))
    is_above[x <= since] = False
    below = np.flatnonzero(~is_above)
    begins = int(below[-1]) + 1
    return int(x[begins]) if len(y) - begins >= MIN_STRETCH else None


def _jump(x: Iterations, y: Floats) -> Jump | None:
    """The place where the medians of a few values on both sides differ most."""
    count = len(y)
    if count < 2 or float(np.ptp(y)) == 0.0:
        return None
    width = max(1, min(5, count // 5))
    levels = smoothed(y, width)
    before, after = levels[: count - 2 * width + 1], levels[width:]
    in_ratio = y.min() > 0.0
    change = np.abs(np.log(after) - np.log(before)) if in_ratio else np.abs(after - before)
    # Of equal changes of level the one with the largest step between two values, and the first.
    step = np.abs(np.diff(y))[width - 1 : count - width]
    place = int(np.lexsort((-np.arange(len(step)), step, change))[-1]) + width
    low, high = median(y[:place]), median(y[place:])
    both_positive = min(low, high) > 0.0
    middle = math.sqrt(low) * math.sqrt(high) if both_positive else low / 2.0 + high / 2.0
    tail = y[max(place, count - max(1, count // 4)) :]
    is_kept = bool((tail > middle).all() if high > low else (tail < middle).all())
    return Jump(int(x[place]), low, high, is_kept and high != low)
