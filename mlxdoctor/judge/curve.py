"""Whether a loss went where the loss of a run that learns goes.

The check asks it of a whole curve, bisect of the model at every save (`blow_ups`), the trainer of
its last steps (`mlxdoctor.train.stopping`). Each compares a loss with a level by `above`: times as
high and so many nats higher, since a ratio alone makes much of small losses, and nats alone of
large ones.

Deliberately apart: the watch looks again at every report and may end a training. Its false
alarms are bounded by a test of its own (`mlxdoctor.watch.betting`), and a fact, like a loss of
exactly zero, has to be repeated (`mlxdoctor.watch.facts`) where `loss-finite` tells of one report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.measure.losses.memorising import MemorisingLimits
from mlxdoctor.measure.losses.repeats import RepeatLimits
from mlxdoctor.measure.losses.trend import Floats, LossFit

_CALIBRATION = "0 of 36 healthy runs of the fixture model, 0 of 4 healthy users' logs"


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


def above(loss: Any, level: Any, ratio: float, nats: float) -> Any:
    """Whether losses, float or float64 (n,), are both `ratio` times and `nats` above a level."""
    return (loss > ratio * level) & (loss - level > nats)


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


def ends_far_above(segment: Segment, curve: LossFit, limits: Limits) -> Divergence | None:
    """Whether a run ends far above its start, of a loss that is no mean over tokens.

    Such a loss may leap from batch to batch, and rise on held-out pairs in a sound run.
    """
    found = divergence(segment, curve, limits) if curve.points >= limits.enough else None
    return found if found and _ends_far_above(curve, found.start.loss, limits) else None


def _for_good(segment: Segment, start: float, onset: int) -> int:
    """The onset, or where most reports after it lie below the start, the last time it rose."""
    losses = segment.finite("train_loss")
    iterations, above_start = losses.iterations, losses.values > start
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
