"""At which reports of a log the loss has blown up: what bisect asks of the saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.judge.curve import Limits, above
from mlxdoctor.measure.losses.trend import Floats, noise

_AT_SAVES = "0 of 126 sound runs of four base models"


@dataclass(frozen=True)
class LogLimits(Limits):
    """What bisect adds: when a model that was saved at a report was lost already.

    At a save the loss stands 1.10 times and 0.06 nats above the lowest level before at most in
    sound runs: `exploded_ratio` and `diverged_nats` hold there too (0 of 126 sound runs).
    """

    noises: float = limit(
        4.0, unit="standard deviations of a report", source="a batch of hard rows is no blow-up"
    )
    share: float = limit(
        0.25,
        unit="rise of the loss over what had been learned",
        source="the saves of sound runs are at 0.02 at most; of 38 runs that broke on the way 28 "
        "are above it at the first broken save, and those whose rate leapt at 0.22 or more",
        false_alarms=_AT_SAVES,
    )


def blown_up(
    values: Floats, start: float | None, width: int, limits: LogLimits
) -> tuple[NDArray[np.bool_], Floats]:
    """At which reports the loss is not finite, or far above the lowest level before them.

    Args:
        values: float64 (n,), the training losses.
        start: the untouched model's loss, where it is known.
        width: reports, an odd number, to take a median of.

    Returns:
        bool (n,), and that level, float64 (n,).
    """
    needed = max(limits.diverged_nats, limits.noises * _noise_before(values))
    smooth = _smoothed(values, width)
    finite = np.isfinite(smooth)
    # The middle of three, so that one lucky batch is no level.
    filled = np.where(finite, smooth, np.inf)
    padded = np.concatenate([[filled[0]], filled, [filled[-1]]])
    level = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    first = start if start is not None and math.isfinite(start) else float(level[0])
    lowest = np.minimum.accumulate(np.concatenate([[first], level]))[:-1]
    with np.errstate(invalid="ignore"):
        is_share = smooth - lowest > limits.share * (first - lowest)
        much = (smooth > limits.exploded_ratio * lowest) | is_share
        far = much & (smooth - lowest > needed) & (smooth > lowest)
    return ~finite | far, lowest


def risen_validations(values: Floats, limits: Limits) -> NDArray[np.bool_]:
    """Which validation losses, float64 (n,), stand far above an earlier one."""
    filled = np.where(np.isfinite(values), values, np.inf)
    with np.errstate(invalid="ignore"):
        lowest = np.minimum.accumulate(filled)
        return np.asarray(above(filled, lowest, limits.overfitted, limits.risen_nats))


def _noise_before(values: Floats) -> float:
    """Of single reports, before the lowest one where that is known: a blow-up is no noise."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0
    before = finite[: int(np.argmin(finite)) + 1]
    return min(noise(before), noise(finite)) if len(before) >= 4 else noise(finite)


def _smoothed(values: Floats, width: int) -> Floats:
    """Medians of `width` neighbours, fewer at the ends; a lasting NaN stays one."""
    half = width // 2
    around = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return np.array(
        [
            np.median(near) if np.isfinite(near).all() else value
            for near, value in zip(around, values, strict=True)
        ]
    )
