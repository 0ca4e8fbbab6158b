"""Whether a loss went where the loss of a run that learns goes.

The check asks it of a whole curve, bisect of the model at every save, the trainer of its last
steps. Each compares a loss with a level by `above`: times as high and so many nats higher, since
a ratio alone makes much of small losses, and nats alone of large ones.

Deliberately apart: the watch looks again at every report and may end a training. Its false
alarms are bounded by a test of its own (`mlxdoctor.watch.betting`), and a fact, like a loss of
exactly zero, has to be repeated (`mlxdoctor.watch.facts`) where `loss-finite` tells of one report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.measure.losses.memorising import MemorisingLimits
from mlxdoctor.measure.losses.repeats import RepeatLimits
from mlxdoctor.measure.losses.trend import Floats, LossFit, noise

_CALIBRATION = "0 of 36 healthy runs of the fixture model, 0 of 4 healthy users' logs"
_AT_SAVES = "0 of 126 sound runs of four base models"


@dataclass(frozen=True)
class Limits(MemorisingLimits, RepeatLimits):
    """When a loss curve is not that of a run that learns."""

    enough: int = limit(
        10, unit="reports", source="Theil-Sen intervals are wider than the trend below that"
    )
    diverged_ratio: float = limit(
        1.5,
        unit="end over start",
        source="told 15 faulty QLoRA runs from 3 healthy ones without error",
        false_alarms=_CALIBRATION,
    )
    diverged_nats: float = limit(
        0.5, unit="nats above the start", source="one noisy batch", false_alarms=_CALIBRATION
    )
    harmed_ratio: float = limit(
        1.05,
        unit="every later validation loss over the first",
        source="validation batches differ by under 2% between evaluations of an unchanged model",
        false_alarms=_CALIBRATION,
    )
    leapt_ratio: float = limit(
        1.15,
        unit="highest level of three reports over the start",
        source="with nothing learned by the end; healthy runs stay below 1.05",
        false_alarms=_CALIBRATION,
    )
    exploded_ratio: float = limit(
        1.5, unit="loss after the onset over before it", source="as diverged_ratio"
    )
    risen_ratio: float = limit(
        1.15,
        unit="end over minimum, of training and of validation losses alike",
        source="healthy runs end within 1.10 of either minimum",
        false_alarms=_CALIBRATION,
    )
    risen_nats: float = limit(
        0.2, unit="nats", source="small losses double and halve with the batch"
    )
    lost_share: float = limit(
        0.4,
        unit="of what the training loss had lost, gained again by the end",
        source="0.05 at most in sound runs whose loss fell by more than its noise; those that "
        "were lost on the way regain a half or more",
        false_alarms="0 of 12 logs: 4 sound fixture runs, one of the ward, 7 public ones",
    )
    lost_for_certain: float = limit(
        0.7,
        unit="of what the training loss had lost, gained again by the end",
        source="little is left of what was learned, whatever the rows",
        false_alarms="as lost_share",
    )
    lost_noises: float = limit(
        5.0, unit="noises of one report", source="a stretch of hard rows is no loss of the model"
    )
    visible: float = limit(0.01, unit="nats", source="less is no fall that a person would see")
    few: int = limit(5, unit="reports", source="a fall and a rise need two reports each")
    averaged: int = limit(5, unit="iterations a report, of few reports", source="not one batch")
    last_high: int = limit(
        3, unit="last reports, all above the middle of the rise", source="one batch, or two"
    )
    late: int = limit(
        15,
        unit="iterations before the first report",
        source="the steepest part of a sound curve lies in the first twenty updates",
    )
    unmoved: float = limit(
        0.05,
        unit="share of the starting loss that was learned",
        source="runs with a rate of 0 or 1e-7 learn under 0.02, the slowest healthy one 0.42",
        false_alarms=_CALIBRATION,
    )
    unmoved_iterations: int = limit(
        100, unit="iterations", source="warm-up and low rates need some", false_alarms=_CALIBRATION
    )
    undecided: float = limit(
        0.15,
        unit="share of the starting loss that may have been learned after all, by the interval",
        source="scattered reports leave the slope open",
        false_alarms="14 of 3,000 simulated sound curves get the warning, none an error",
    )
    falls_by: float = limit(
        4.0, unit="standard errors of the level at the end", source="more than scatter"
    )
    already_low: float = limit(0.3, unit="nats", source="little is left to learn below")


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


def above(loss: Any, level: Any, ratio: float, nats: float) -> Any:
    """Whether losses, float or float64 (n,), are both `ratio` times and `nats` above a level."""
    return (loss > ratio * level) & (loss - level > nats)


def is_diverging(recent: Sequence[float], untouched: float, limits: DivergenceLimits) -> bool:
    """Whether the losses of the last steps are far above the untouched model's."""
    return bool(above(median(recent), untouched, limits.factor, limits.diverged_nats))


@dataclass(frozen=True)
class Start:
    """Where a run began.

    Attributes:
        loss: in nats.
        is_base: whether it is the validation loss before the first update; else the first report.
    """

    loss: float
    is_base: bool


def start_of(segment: Segment, curve: LossFit) -> Start:
    """The untouched model's loss where the log has it, else the first that was reported."""
    base = segment.base_val_loss
    if base is not None and math.isfinite(base) and base > 0:
        return Start(base, True)
    return Start(curve.first, False)


@dataclass(frozen=True)
class Divergence:
    """A loss that ends above where it began, or has only just come back.

    Attributes:
        start: where it began.
        onset: the iteration by which it had risen.
        validation: the last validation loss; None without one after the first.
    """

    start: Start
    onset: int
    validation: float | None


def divergence(segment: Segment, curve: LossFit, limits: Limits) -> Divergence | None:
    """Whether a run ends above its start. With few reports only a large rise counts."""
    start = start_of(segment, curve)
    if not start.is_base and (not segment.shows_start or curve.points < 2):
        return None
    later = _later_validations(segment)
    is_found = _ends_far_above(curve, start.loss, limits)
    # The untouched model's loss is a fact: less above it will do.
    if not is_found and start.is_base and curve.points >= limits.enough:
        is_found = _stays_above(curve, start.loss, later, limits)
        is_found = is_found or _leapt(segment, curve, start.loss, later, limits)
    if not is_found:
        return None
    onset = curve.onset
    if onset is None:
        rise = max(0.0, min(limits.diverged_nats, (curve.end - start.loss) / 2))
        onset = _first_above(segment, start.loss + rise)
    onset = _for_good(segment, start.loss, onset)
    return Divergence(start, onset, float(later[-1]) if len(later) else None)


def _for_good(segment: Segment, start: float, onset: int) -> int:
    """The onset, or where most reports after it lie below the start, the last time it rose."""
    losses = segment.series["train_loss"]
    known = np.isfinite(losses.values)
    iterations, above_start = losses.iterations[known], losses.values[known] > start
    if 2 * int(above_start[iterations >= onset].sum()) > int((iterations >= onset).sum()):
        return onset
    below = np.flatnonzero(~above_start)
    if not len(below) or below[-1] + 1 >= len(iterations):
        return onset
    return int(iterations[below[-1] + 1])


def _ends_far_above(curve: LossFit, start: float, limits: Limits) -> bool:
    """It ends far above the start, and so does, of enough reports, each of the last quarter."""
    if not above(curve.end, start, limits.diverged_ratio, limits.diverged_nats):
        return False
    # One batch is no average: short reports must all agree.
    margin = max(limits.diverged_nats, 4.0 * min(curve.noise, (curve.end - start) / 4))
    return curve.points < limits.enough or curve.tail_minimum > start + margin


def _stays_above(curve: LossFit, start: float, later: Floats, limits: Limits) -> bool:
    """Every later validation loss is above the first, and the end of the training loss is too."""
    harmed = limits.harmed_ratio * start
    is_harmed = len(later) >= 2 and bool(np.all(later > harmed))
    return is_harmed and curve.tail_minimum > start and curve.end > harmed


def _leapt(segment: Segment, curve: LossFit, start: float, later: Floats, limits: Limits) -> bool:
    """It leapt above the start, and has learned next to nothing by the end.

    Training rows may be harder than validation rows. These only compare with themselves:
    where they rose, a lower leap counts, and where they did not, none does.
    """
    has_risen = len(later) > 0 and float(later.max()) > limits.harmed_ratio * start
    if len(later) and not has_risen:
        return False
    losses = segment.series["train_loss"]
    ratio = limits.leapt_ratio if has_risen else limits.diverged_ratio
    is_back_at_most = curve.end > (1.0 - limits.unmoved) * start
    is_long = losses.iterations[-1] >= limits.unmoved_iterations
    return bool(_highest_level(losses.values) > ratio * start and is_back_at_most and is_long)


def has_exploded(curve: LossFit, limits: Limits) -> bool:
    """Whether the loss left the level that it had reached, at the curve's onset, for good."""
    level = curve.before_onset
    if curve.onset is None or level is None or curve.points < limits.enough:
        return False
    rise = curve.end - level
    least = max(limits.diverged_nats, 3 * curve.noise)
    is_high = curve.end >= limits.exploded_ratio * level and rise >= least
    return is_high and curve.tail_minimum >= level + rise / 3


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
    validations = _finite_validations(segment)
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
    losses = segment.series["train_loss"].values
    finite = losses[np.isfinite(losses)]
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
    validation = segment.get("val_loss")
    known = np.isfinite(validation.values) if validation is not None else np.zeros(0, bool)
    if validation is None or known.sum() < 2:
        return False
    values, iterations = validation.values[known], validation.iterations[known]
    middle = (onset + int(segment.series["train_loss"].iterations[-1])) / 2
    return bool(iterations[-1] >= middle and values[-1] <= limits.harmed_ratio * values.min())


def _interval(segment: Segment) -> float:
    """Iterations between two training reports."""
    at = segment.series["train_loss"].iterations
    return float(np.median(np.diff(at))) if len(at) > 1 else float(at[0])


def _regained(curve: LossFit) -> float:
    """The rise from the lowest level to the end, over the fall to it; infinity without one."""
    fall = curve.start - curve.minimum
    return (curve.end - curve.minimum) / fall if fall > 0 else math.inf


def _finite_validations(segment: Segment) -> Floats:
    validation = segment.get("val_loss")
    if validation is None:
        return np.zeros(0)
    return validation.values[np.isfinite(validation.values)]


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


def _highest_level(values: Floats) -> float:
    """The highest level that three reports in a row reached, in nats."""
    values = values[np.isfinite(values)]
    if len(values) < 3:
        return float(values.max())
    return float(np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1).max())


def _later_validations(segment: Segment) -> Floats:
    """Finite validation losses after the first, where that was before the first update."""
    validation = segment.get("val_loss")
    if validation is None or segment.base_val_loss is None:
        return np.zeros(0)
    later = validation.values[1:]
    return later[np.isfinite(later)]


def _first_above(segment: Segment, level: float) -> int:
    losses = segment.series["train_loss"]
    with np.errstate(invalid="ignore"):
        places = np.flatnonzero(losses.values > level)
    return int(losses.iterations[places[0] if len(places) else 0])
