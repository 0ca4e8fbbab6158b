"""Which rates are tried next, and what a trial at one did to the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.measure.rate_range import Effect, RatePoint


@dataclass(frozen=True)
class RateLimits:
    """When a rate learns, and how rates are searched."""

    share: float = limit(
        2 / 3,
        unit="of the best rate's gain",
        source="trials of 32 updates on 4 pairs of base and data: from one rate to twice that "
        "the gain falls from 74 to 93% of the best one's to 12 to 37%",
    )
    visible: float = limit(
        0.01, unit="of the untouched model's loss", source="less is no use within a few updates"
    )
    errors: float = limit(3.0, unit="standard errors", source="one change in 300 by chance")
    leap: float = limit(
        0.1,
        unit="of the untouched model's loss on the same batch, above it",
        source="a model thrown back to a constant guess may still gain where answers are few words",
        false_alarms="0 of 27 rates up to the limit on 4 pairs: no batch was above it at all",
    )
    leaps: int = limit(2, unit="updates", source="one hard batch is no leap")
    stride: float = limit(4.0, unit="times the last rate", source="bisected afterwards")
    fine: float = limit(1.5, unit="upper over lower rate of the bracket", source="half a factor 3")
    margin: float = limit(
        3.0,
        unit="largest rate that learns over the advised one",
        source="whole runs are longer than a test; see reports/preflight-rates.md",
    )
    near: float = limit(1.5, unit="largest rate that learns over the configured one", source="fine")
    far_below: float = limit(
        10.0, unit="advised rate over the configured one", source="a tenth learns far more slowly"
    )
    lowest: float = limit(1e-8, unit="rate", source="nothing is learned there")
    highest: float = limit(10.0, unit="rate", source="nothing is left there")


#: What a rate does that is too high.
FAILING = frozenset({"leaps", "harms", "lost"})
#: Makes a trial at a rate; None where the time is up.
Try = Callable[[float], RatePoint | None]


def effect_of(point: RatePoint, untouched: float, best: float, limits: RateLimits) -> Effect:
    """What a change of the loss is, beside the best one (negative, or 0 where there is none)."""
    change = point.change
    if not math.isfinite(change):
        return "lost"
    if change > 0 and change > _seen(point, untouched, limits):
        return "harms"
    if point.leaps >= limits.leaps:
        return "leaps"
    if abs(change) <= _seen(point, untouched, limits):
        return "still"
    return "learns" if change <= limits.share * best else "lags"


def _seen(point: RatePoint, untouched: float, limits: RateLimits) -> float:
    """How large a change has to be to be seen, nats."""
    return max(limits.errors * point.noise, limits.visible * untouched)


def leaps_of(losses: Sequence[float], untouched: Sequence[float], limits: RateLimits) -> int:
    """Of how many updates the batch's loss is far above the untouched model's on it."""
    pairs = zip(losses, untouched, strict=False)
    return sum(not one <= before * (1 + limits.leap) for one, before in pairs)


def changes(
    held: Sequence[float], before: Sequence[float], tokens: Sequence[float]
) -> tuple[float, float]:
    """The mean change of the loss over fixed batches, nats a token, and its standard error.

    Args:
        held: each batch's loss after the updates; empty where they were broken off.
        before: the untouched model's.
        tokens: the supervised tokens of each batch.
    """
    if not held:
        return math.nan, math.nan
    weights = np.asarray(tokens) / max(sum(tokens), 1.0)
    each = np.asarray(held) - np.asarray(before)
    mean = float(weights @ each)
    spread = float(weights @ (each - mean) ** 2)
    error = math.sqrt(spread / (len(each) - 1)) if len(each) > 1 else abs(mean)
    return mean, error if math.isfinite(error) else math.nan


def search(start: float, attempt: Try, limits: RateLimits) -> None:
    """Try rates until the largest that learns is known to within `limits.fine`.

    Args:
        start: the rate to begin with.
        attempt: makes a trial; what it gave so far is judged anew each time, since the best
            rate is known only in the end.
    """
    points: list[RatePoint] = []
    rate: float | None = start
    while rate is not None:
        found = attempt(rate)
        if found is None:
            return
        points.append(found)
        rate = _next(points, limits)


def judged(points: Sequence[RatePoint], untouched: float, limits: RateLimits) -> list[RatePoint]:
    """The points in order of their rates, each with its effect beside the best of all."""
    gains = [one.change for one in points if math.isfinite(one.change)]
    steady = [one.change for one in points if one.leaps < limits.leaps and one.change < 0]
    best = min(steady or gains, default=0.0)
    return [
        replace(one, effect=effect_of(one, untouched, min(best, 0.0), limits))
        for one in sorted(points, key=lambda one: one.rate)
    ]


def _next(points: Sequence[RatePoint], limits: RateLimits) -> float | None:
    """The rate to try next; None where enough is known.

    First a rate that learns is looked for, then one above that does not, then one below that
    learns less than the best, and then the border between the first two is narrowed.
    """
    ordered = sorted(points, key=lambda one: one.rate)
    learning = [one for one in ordered if one.effect in {"learns", "lags"}]
    stride = limits.stride
    if not learning:
        return _towards(ordered, limits)
    best = min(learning, key=lambda one: one.change)
    good = [one for one in learning if one.change <= limits.share * best.change]
    top = good[-1]
    above = [one for one in ordered if one.rate > top.rate]
    if not above:
        return _within(top.rate * stride, limits)
    if ordered[0] is best:
        return _within(best.rate / stride, limits)
    low, high = top.rate, above[0].rate
    return math.sqrt(low * high) if high / low > limits.fine else None


def _towards(ordered: Sequence[RatePoint], limits: RateLimits) -> float | None:
    """Where to look for a rate that learns while none is known."""
    still = [one.rate for one in ordered if one.effect == "still"]
    bad = [one.rate for one in ordered if one.effect in FAILING]
    stride = limits.stride**2
    if still and bad:
        high = min(bad)
        low = max((one for one in still if one < high), default=high)
        return math.sqrt(low * high) if high / low > limits.fine else None
    return _within(max(still) * stride if still else min(bad) / stride, limits)


def _within(rate: float, limits: RateLimits) -> float | None:
    return rate if limits.lowest <= rate <= limits.highest else None


def lower_rates(rate: float, limits: RateLimits, count: int = 1) -> Iterator[float]:
    """Rates below one, to see from where on anything is learned."""
    for power in range(1, count + 1):
        if _within(rate / limits.stride**power, limits) is not None:
            yield rate / limits.stride**power
