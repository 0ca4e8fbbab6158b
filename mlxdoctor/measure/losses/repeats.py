"""Losses that repeat to the last digit: the same rows again, and the same model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.measure.losses.trend import Floats


@dataclass(frozen=True)
class RepeatLimits:
    """When equal losses are no chance."""

    by_chance: float = limit(
        1e-8,
        unit="probability that as many losses agree by chance",
        source="designed; seven of four decimals agree in a public log of a model that never moved",
        false_alarms="0 of 12 logs: 4 sound fixture runs, one of the ward, 7 public ones",
    )
    coarsest: float = limit(
        0.002, unit="last digit over the loss", source="a small loss has too few digits to repeat"
    )
    one_by_chance: float = limit(
        1 / 256, unit="probability for one loss", source="half precision has 256 values an octave"
    )
    still: float = limit(
        0.03,
        unit="of the loss, which it moves by from report to report in a training that learns",
        source="0.08 from the first validation to the second in the ward's slowest sound run",
    )


@dataclass(frozen=True)
class Repetition:
    """A series that is the same again after some reports.

    Attributes:
        period: after so many reports; 1 where all are the same.
        compared: reports that are the same as the one a period before.
        by_chance: the probability of that in a training that moves.
    """

    period: int
    compared: int
    by_chance: float


def repetition(values: Floats, limits: RepeatLimits) -> Repetition | None:
    """Whether a whole series repeats itself; None where it does not, or it may be chance.

    Two losses that differ by chance agree with a probability of about
    resolution / (2 sqrt(pi) noise).

    Args:
        values: float64 (n,), losses as they were printed.
        limits: when that is no chance.
    """
    count = len(values)
    if count < 3 or not np.isfinite(values).all() or values.min() <= 0.0:
        return None
    # The last digit that any of them is printed with.
    resolution = 10.0 ** -max(decimals(float(one)) for one in values[:200])
    if resolution > limits.coarsest * float(np.median(values)):
        return None
    for period in np.flatnonzero(values[1:] == values[0]) + 1:
        if not np.array_equal(values[period:], values[:-period]):
            continue
        spread = float(np.std(values[:period])) if period > 1 else 0.0
        noise = max(spread, limits.still * float(np.median(values)) if period == 1 else 0.0)
        one = max(resolution / (2 * math.sqrt(math.pi) * noise), limits.one_by_chance)
        compared = count - int(period)
        by_chance = min(one, 1.0) ** compared
        # Whole seasons of a series that also moves on its own would fit only by chance.
        return (
            Repetition(int(period), compared, by_chance) if by_chance <= limits.by_chance else None
        )
    return None


def decimals(value: float) -> int:
    """After how many decimals a number ends, as it is printed in full."""
    text = repr(value)
    return 17 if "e" in text else len(text.partition(".")[2])
