"""Robust statistics of a loss curve: level, noise, change points, slope with its interval.

A whole-run trend test calls an exploded run "decreasing" when the loss falls back a
little afterwards. So the last change point is found first, and the slope is taken on
what follows it.

Sources: optimal partitioning, Jackson et al. 2005; Theil 1950 and Sen 1968 for the slope
and its interval; Hamed and Rao 1998 for its variance under autocorrelation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Points the curve is reduced to (medians of blocks); the partitioning is quadratic in it.
MAX_BLOCKS = 400
#: Fewest points of a stretch between change points: a line needs two, noise a third.
MIN_STRETCH = 3
#: Penalty of a change point in units of noise variance times ln(points): two
#: coefficients and a place each, three times over because losses have heavy tails.
PENALTY = 9.0
#: The 97.5 % point of the normal distribution: intervals are 95 %.
Z95 = 1.959963984540054
#: Standard deviation of a normal sample over its median absolute deviation.
MAD_TO_SD = 1.482602218505602


@dataclass(frozen=True)
class LossFit:
    """What a loss curve says.

    Attributes:
        points: finite reports; those that are not finite are left out.
        edge: how many reports `start`, `end` and `minimum` are medians of.
        first: the first finite loss, in nats.
        last: the last finite loss.
        start: median of the first few finite losses.
        end: median of the last few.
        tail_minimum: the lowest loss in the last quarter.
        minimum: the lowest median of as many reports in a row as `end` is taken of, in
            nats; a single lucky batch does not count.
        minimum_at: the iteration in the middle of them.
        noise: robust standard deviation of one report around the curve, in nats.
        onset: iteration at which the loss rose for good, or None.
        before_onset: the level before it, in nats.
        is_falling: whether the 95 % interval of the Theil-Sen slope after the last change point
            lies below zero.
    """

    points: int
    edge: int
    first: float
    last: float
    start: float
    end: float
    tail_minimum: float
    minimum: float
    minimum_at: int
    noise: float
    onset: int | None
    before_onset: float | None
    is_falling: bool


def fit(iterations: NDArray[np.int64], losses: Floats) -> LossFit | None:
    """Describe a loss curve.

    Args:
        iterations: int64 (n,), as reported.
        losses: float64 (n,), in nats; NaN and infinities are left out.

    Returns:
        None where no loss is finite.
    """
    finite = np.isfinite(losses)
    if not finite.any():
        return None
    x, y = iterations[finite].astype(np.float64), losses[finite]
    count = len(y)
    edge = max(1, min(10, count // 5))
    sigma = noise(y)
    block_x, block_y = blocks(x, y)
    cuts = partition(block_x, block_y)
    bounds = [0, *cuts, len(block_y)]
    levels = [float(np.median(block_y[a:b])) for a, b in pairwise(bounds)]
    # The first report of each stretch: an iteration that the log has.
    per_block = -(-count // MAX_BLOCKS) if count > MAX_BLOCKS else 1
    begins = [int(x[at * per_block]) for at in bounds[:-1]]
    onset, before = _onset(begins, levels, sigma)
    _, (_, highest_slope) = theil_sen(block_x[bounds[-2] :], block_y[bounds[-2] :])
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(y, edge), axis=1)
    lowest = int(np.argmin(smooth))
    return LossFit(
        points=count,
        edge=edge,
        first=float(y[0]),
        last=float(y[-1]),
        start=float(np.median(y[:edge])),
        end=float(np.median(y[-edge:])),
        tail_minimum=float(y[-max(1, count // 4) :].min()),
        minimum=float(smooth[lowest]),
        minimum_at=int(x[lowest + edge // 2]),
        noise=sigma,
        onset=onset,
        before_onset=before,
        is_falling=highest_slope < 0.0,
    )


def level(loss: float, reports: int) -> str:
    """A loss that is a median of so many reports, and says so."""
    return f"{loss:.3f}" + (f" (median of {reports} reports)" if reports > 1 else "")


def opening(curve: LossFit) -> str:
    """The loss at the start, in words."""
    first = f" (median of the first {curve.edge} reports)" if curve.edge > 1 else ""
    return f"{curve.start:.3f}{first}"


def ending(curve: LossFit) -> str:
    """The loss at the end, in words."""
    last = f" (median of the last {curve.edge} reports)" if curve.edge > 1 else ""
    return f"{curve.end:.3f}{last}"


def noise(values: Floats) -> float:
    """Robust standard deviation of single values around a slowly moving curve.

    From second differences, which a line leaves at zero; their variance is six times
    that of the values. 0.0 with fewer than four values.
    """
    if len(values) < 4:
        return 0.0
    second = values[2:] - 2.0 * values[1:-1] + values[:-2]
    return float(MAD_TO_SD * np.median(np.abs(second)) / np.sqrt(6.0))


def blocks(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most `MAX_BLOCKS` points: medians of neighbouring values."""
    if len(y) <= MAX_BLOCKS:
        return x, y
    width = -(-len(y) // MAX_BLOCKS)
    whole = len(y) // width * width
    middle = [np.median(part[:whole].reshape(-1, width), axis=1) for part in (x, y)]
    if whole < len(y):
        middle = [
            np.append(body, np.median(part[whole:]))
            for body, part in zip(middle, (x, y), strict=True)
        ]
    return middle[0], middle[1]


def partition(x: Floats, y: Floats) -> list[int]:
    """Indices at which a new line fits better than the old one, by optimal partitioning.

    The cost of a stretch is its squared error around a line over the noise variance,
    capped point by point so that a lone spike is not a stretch of its own.
    """
    count = len(y)
    if count < 2 * MIN_STRETCH:
        return []
    sigma = noise(y)
    if sigma <= 0.0:
        sigma = 1e-3 * max(float(np.ptp(y)), 1e-12)
    z = _winsorised(y, sigma)
    t = (x - x[0]) / max(x[-1] - x[0], 1.0)
    one = np.ones(count)
    sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (one, t, t * t, z, t * z, z * z)]
    penalty = PENALTY * np.log(count) * sigma * sigma
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(count + 1, dtype=np.int64)
    for end in range(MIN_STRETCH, count + 1):
        starts = np.arange(0, end - MIN_STRETCH + 1)
        n, st, stt, sz, stz, szz = (one_sum[end] - one_sum[starts] for one_sum in sums)
        spread_t = stt - st * st / n
        spread_z = np.maximum(szz - sz * sz / n, 0.0)
        both = stz - st * sz / n
        with np.errstate(divide="ignore", invalid="ignore"):
            explained = np.where(spread_t > 1e-12, both * both / spread_t, 0.0)
        total = best[starts] + np.maximum(spread_z - explained, 0.0) + penalty
        chosen = int(np.argmin(total))
        best[end], previous[end] = total[chosen], starts[chosen]
    cuts: list[int] = []
    at = int(previous[count])
    while at > 0:
        cuts.append(at)
        at = int(previous[at])
    return cuts[::-1]


def theil_sen(x: Floats, y: Floats) -> tuple[float, tuple[float, float]]:
    """The median of all pairwise slopes, and its 95 % interval.

    The interval is Sen's, with Hamed and Rao's correction of the variance of Kendall's S
    for autocorrelated residuals. (-inf, inf) with fewer than four points.
    """
    count = len(y)
    if count < 2:
        return 0.0, (-np.inf, np.inf)
    first, second = np.triu_indices(count, 1)
    run = x[second] - x[first]
    usable = run > 0
    if not usable.any():
        return 0.0, (-np.inf, np.inf)
    slopes = np.sort((y[second] - y[first])[usable] / run[usable])
    slope = float(np.median(slopes))
    if count < 4:
        return slope, (-np.inf, np.inf)
    variance = count * (count - 1) * (2 * count + 5) / 18.0
    variance *= _inflation(y - slope * x)
    half = Z95 * np.sqrt(variance)
    low = int(np.floor((len(slopes) - half) / 2.0))
    high = int(np.ceil((len(slopes) + half) / 2.0))
    return slope, (
        float(slopes[low]) if low >= 0 else -np.inf,
        float(slopes[high]) if high < len(slopes) else np.inf,
    )


def _inflation(residuals: Floats) -> float:
    """How much autocorrelation widens the variance of Kendall's S; at least 1.

    Hamed and Rao's n/n* from the ranks of the residuals, or that of a first-order process
    with the same first autocorrelation (Yue and Wang 2004), whichever is larger. The
    estimated autocorrelation of residuals is too low by (1 + 4 rho) / n (Kendall 1954).
    """
    count = len(residuals)
    ranks = np.argsort(np.argsort(residuals)).astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if power <= 0.0 or float(np.ptp(residuals)) == 0.0:
        return 1.0
    lags = np.arange(1, min(count - 2, count // 4 + 1))
    rho = np.array([float(ranks[lag:] @ ranks[:-lag]) / power for lag in lags])
    first = float(rho[0]) + (1.0 + 4.0 * float(rho[0])) / count if len(rho) else 0.0
    # Only significant lags count, or their noise adds up.
    rho = np.where(np.abs(rho) > Z95 / np.sqrt(count), rho, 0.0)
    weights = (count - lags) * (count - lags - 1.0) * (count - lags - 2.0)
    scale = 2.0 / (count * (count - 1.0) * (count - 2.0))
    several = 1.0 + scale * float(weights @ rho)
    first = min(first, 0.95) if first > 1.0 / np.sqrt(count) else 0.0
    return max(1.0, several, (1.0 + first) / (1.0 - first))


def _winsorised(y: Floats, sigma: float) -> Floats:
    """The values, lone points more than five noises off their neighbours pulled back."""
    middle = _running_median(y)
    return np.clip(y, middle - 5.0 * sigma, middle + 5.0 * sigma)


def _running_median(y: Floats) -> Floats:
    """Median of three neighbours; ends keep the median of their own three."""
    if len(y) < 3:
        return y
    inner = np.median(np.stack([y[:-2], y[1:-1], y[2:]]), axis=0)
    return np.concatenate([[inner[0]], inner, [inner[-1]]])


def _onset(
    begins: Sequence[int], levels: Sequence[float], sigma: float
) -> tuple[int | None, float | None]:
    """Where the loss left its lowest level and never came back to it.

    Args:
        begins: the iterations at which the stretches between change points begin.
        levels: the median of each, in nats.
        sigma: noise of one report, in nats.
    """
    level = min(levels)
    limit = level + max(3.0 * sigma, 0.05 * abs(level))
    for index in range(levels.index(level) + 1, len(levels)):
        if min(levels[index:]) > limit:
            return begins[index], level
    return None, None
