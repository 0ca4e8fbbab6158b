"""Whether a training loss never moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.judge.curve import Limits, start_of
from mlxdoctor.measure.losses.trend import LossFit, blocks, theil_sen


@dataclass(frozen=True)
class NeverLearned:
    """A training loss that ends where it began.

    Attributes:
        falls: by how much a line through all reports falls, as a share of the starting loss.
        at_most: by how much it may fall, by its 95% interval.
        learned: the most that any measure shows to have been learned, as such a share.
        slope: of the line, nats an iteration.
        interval: of the slope.
        same_validation: what every validation loss is, where there are three and all are equal.
        is_certain: whether the run was long enough, and surely began untrained.
    """

    falls: float
    at_most: float
    learned: float
    slope: float
    interval: tuple[float, float]
    same_validation: float | None
    is_certain: bool


def opens_late(segment: Segment, limits: Limits) -> bool:
    """Whether the steepest part of a sound curve could lie before the first report."""
    first = int(segment.series["train_loss"].iterations[0])
    counts = segment.axis in ("iteration", "step")
    return segment.base_val_loss is None and counts and first > limits.late


def never_learned(
    segment: Segment, curve: LossFit, fresh: bool | None, limits: Limits
) -> NeverLearned | None:
    """What shows that nothing was learned; None where something was, or may have been.

    Args:
        segment: of the log.
        curve: its training loss.
        fresh: whether training began from the base model; None where nothing tells.
        limits: what counts as learned.
    """
    if fresh is False or not segment.shows_start or curve.points < limits.enough:
        return None
    losses, start = segment.series["train_loss"], curve.start
    if start < limits.already_low or not np.isfinite(losses.values).all():
        return None
    x, y = losses.iterations.astype(np.float64), losses.values
    span = float(x[-1] - x[0])
    slope, (low, high) = theil_sen(*blocks(x, y))
    falls, at_most = -slope * span / start, -low * span / start
    learned, before = falls, start_of(segment, curve)
    if before.is_base:
        learned = max(learned, 1.0 - curve.end / before.loss)
    # A few reports fall, and hundreds that lie level outweigh them in every slope.
    fell = start - curve.end > limits.falls_by * curve.noise / np.sqrt(curve.edge)
    if fell:
        learned = max(learned, 1.0 - curve.end / start)
    same = _same_validation(segment)
    # Equal validation losses outweigh the scatter of a few training reports.
    is_level = same is not None and low <= 0.0 <= high and not fell
    if learned >= limits.unmoved and not is_level:
        return None
    # A policy that asks for more than that is not about runs that learned nothing.
    scattered = at_most >= limits.undecided > limits.unmoved
    if same is None and (opens_late(segment, limits) or scattered):
        return None
    is_long = bool(losses.iterations[-1] >= limits.unmoved_iterations)
    is_certain = same is not None or (is_long and at_most < limits.unmoved and fresh is True)
    return NeverLearned(falls, at_most, learned, slope, (low, high), same, is_certain)


def _same_validation(segment: Segment) -> float | None:
    validation = segment.get("val_loss")
    if validation is None or len(validation) < 3:
        return None
    first = float(validation.values[0])
    return first if bool(np.all(validation.values == first)) else None
