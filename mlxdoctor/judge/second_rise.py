"""Whether a loss that had fallen rose again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.judge.curve import Limits
from mlxdoctor.measure.losses.trend import LossFit


@dataclass(frozen=True)
class SecondRise:
    """A loss that fell and rose again.

    Attributes:
        share: of what the training loss had lost, how much it gained again.
        validation: the lowest validation loss and the mean of the last two, where they rose too.
        is_certain: whether the validation losses, or nearly the whole fall, say so.
    """

    share: float
    validation: tuple[float, float] | None
    is_certain: bool


def second_rise(segment: Segment, curve: LossFit, limits: Limits) -> SecondRise | None:
    """Whether both losses, or the training loss where nothing contradicts it, rose again."""
    share = _regained(curve)
    validations = segment.finite("val_loss").values
    fell = max(curve.first, curve.start) - curve.minimum >= limits.visible
    if fell and curve.points >= limits.enough and len(validations) >= limits.validations:
        # The mean of the last two: a loss that swings is caught on either swing.
        last, lowest = float(validations[-2:].mean()), float(validations.min())
        both = ((curve.end, curve.minimum), (last, lowest))
        if all(
            end >= limits.risen_ratio * low and end - low >= limits.risen_nats for end, low in both
        ):
            return SecondRise(share, (lowest, last), is_certain=True)
    return _training_rise(segment, curve, share, limits)


def _training_rise(
    segment: Segment, curve: LossFit, share: float, limits: Limits
) -> SecondRise | None:
    """The training loss alone: much of what was learned is lost, and no validation denies it."""
    rise, fall = curve.end - curve.minimum, curve.start - curve.minimum
    if share < limits.lost_share or not segment.shows_start or curve.points < limits.few:
        return None
    finite = segment.finite("train_loss").values
    # The scatter of a few reports can't be told from where they go: each must average some.
    few = curve.points < limits.enough
    least = limits.diverged_nats if few else limits.lost_noises * curve.noise
    if min(rise, fall) < max(limits.risen_nats, least):
        return None
    if few and _interval(segment) < limits.averaged:
        return None
    if finite[-limits.last_high :].min() < curve.minimum + rise / 2:
        return None
    if validations_deny(segment, curve.minimum_at, limits):
        return None
    is_certain = share >= limits.lost_for_certain and curve.points >= limits.enough
    return SecondRise(share, None, is_certain)


def validations_deny(segment: Segment, onset: int, limits: Limits) -> bool:
    """Whether a validation well after the onset of a rise is as low as any: rows grew harder."""
    validation = segment.finite("val_loss")
    if len(validation) < 2:
        return False
    middle = (onset + int(segment.series["train_loss"].iterations[-1])) / 2
    is_low = validation.values[-1] <= limits.harmed_ratio * validation.values.min()
    return bool(validation.iterations[-1] >= middle and is_low)


def _interval(segment: Segment) -> float:
    """Iterations between two training reports."""
    at = segment.series["train_loss"].iterations
    return float(np.median(np.diff(at))) if len(at) > 1 else float(at[0])


def _regained(curve: LossFit) -> float:
    """The rise from the lowest level to the end, over the fall to it; infinity without one."""
    fall = curve.start - curve.minimum
    return (curve.end - curve.minimum) / fall if fall > 0 else math.inf
