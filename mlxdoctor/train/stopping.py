"""Whether a run diverges, and should not go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from mlxdoctor.check import limit
from mlxdoctor.judge.curve import Limits, above


@dataclass(frozen=True)
class DivergenceLimits(Limits):
    """What the trainer adds: when its last losses are far above the untouched model's.

    Its ratio is lower than that of a whole log, since it is asked of a median of many batches.
    """

    opening: int = limit(
        5, unit="steps", source="stands for the untouched model where nothing is validated"
    )
    window: int = limit(20, unit="steps", source="seed 000: 2.1 had become 10.9 at step 20")
    factor: float = limit(
        1.15,
        unit="times the untouched model's loss",
        source="rates of 5e-3 to 1e-1 on the fixture base settle at 1.2 times its loss",
        false_alarms="0 of 4 healthy fixture runs of 100 steps",
    )


def is_diverging(recent: Sequence[float], untouched: float, limits: DivergenceLimits) -> bool:
    """Whether the losses of the last steps are far above the untouched model's."""
    return bool(above(median(recent), untouched, limits.factor, limits.diverged_nats))


def why_diverged(
    losses: Sequence[float], validated: float | None, limits: DivergenceLimits
) -> str | None:
    """Why a run should end here, as a sentence; None to go on.

    Args:
        losses: of every batch so far, nats.
        validated: the validation loss before the first update; None without one.
        limits: when it diverges.
    """
    if not math.isfinite(losses[-1]):
        return f"the loss of batch {len(losses):,} is not finite"
    if len(losses) < limits.window:
        return None
    # The higher of its estimates, so as not to stop early. The first batch is seen before any
    # update, but may be an easy one: alone, the median of the first few stands in.
    if validated is None or math.isnan(validated):
        untouched = median(losses[: limits.opening])
    else:
        untouched = max(validated, losses[0])
    recent = losses[-limits.window :]
    if not is_diverging(recent, untouched, limits):
        return None
    return (
        f"the loss of the last {limits.window} batches is {median(recent):.3f}, "
        f"where the untouched model has {untouched:.3f}"
    )
