"""The loss does not go where the loss of a run that learns goes.

What it finds. A loss that leaps above where it began and stays there, that explodes later, that
falls and rises again, or that never moves; lone spikes; and a validation loss that rises from
its minimum while the training loss falls.

Why it matters. The last value alone misleads: 9.98 looks like a number among others until one
knows that the run began at 1.86. Seen early, it saves hours.

How it is measured. A multiple of the base model's own loss (the validation loss before the
first update) is a fact. Then the curve: change points by optimal partitioning, so that a run
that exploded and fell back a little is not called decreasing; then the Theil-Sen slope with its
95% interval, widened for autocorrelation (Hamed and Rao 1998). With fewer than ten reports only
facts are judged. Rows are known by heart where the validation loss stands far above the
training loss; that is an error where it climbed, or fell no more for the last part of many
passes over the same rows.

When it is wrong. The training loss averages batches and the validation loss tokens, so small
differences between the two are ignored. A run resumed from a trained adapter begins at a level
it has already learned, and a log that begins in the middle does not show where it began: such
runs are not called unlearned. Losses of preference training (DPO, ORPO, GRPO) are not judged.

What to do. Take the last checkpoint before the onset. For a loss that leaps or explodes, lower
the learning rate or the scale; for one that never moves, see whether the adapter's weights
changed at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.losses.memorising import MemorisingLimits, memorising, passes_over
from mlxdoctor.measure.losses.trend import Floats, LossFit, blocks, fit, theil_sen

_CALIBRATION = "0 of 36 healthy runs of the fixture model, 0 of 4 healthy users' logs"


@dataclass(frozen=True)
class Limits(MemorisingLimits):
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
    unmoved: float = limit(
        0.05,
        unit="share of the starting loss that was learned",
        source="runs with a rate of 0 or 1e-7 learn under 0.02, the slowest healthy one 0.42",
        false_alarms=_CALIBRATION,
    )
    unmoved_iterations: int = limit(
        100, unit="iterations", source="warm-up and low rates need some", false_alarms=_CALIBRATION
    )
    already_low: float = limit(0.3, unit="nats", source="little is left to learn below")


@check(
    codes={
        "diverged": "the loss ends far above where it began",
        "exploded": "the loss left the level it had reached and never came back",
        "rose-again": "training and validation losses fell, and rose again",
        "never-learned": "the loss did not move",
        "overfitting": "the validation loss rises or stays while the training loss goes on to fall",
    },
    limits=Limits(),
    decisive=True,
    marks_onset=True,
    rerun_symptom=True,
)
def loss_trend(
    log: TrainingLog, limits: Limits, config: TrainingConfig | None, rows: SupervisedRows | None
) -> Iterator[Finding]:
    """Judge the curve of the log's main segment."""
    segment = log.main
    losses = segment.get("train_loss")
    curve = fit(losses.iterations, losses.values) if losses is not None else None
    if losses is None or curve is None:
        raise Inconclusive("the log holds no finite training loss")
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no level or trend to judge")
    lost = (
        list(_diverged(segment, curve, limits))
        or list(_exploded(curve, limits))
        or list(_rose_again(segment, curve, limits))
    )
    yield from lost
    if not lost:
        yield from _never_learned(segment, losses, curve, _fresh(log, config), limits)
        yield from _overfitting(segment, curve, passes_over(rows, config, segment), limits)
    if curve.points < limits.enough:
        raise Inconclusive(
            f"{curve.points} finite training losses are too few to judge a trend; "
            f"{limits.enough} are needed"
        )


def _diverged(segment: Segment, curve: LossFit, limits: Limits) -> Iterator[Finding]:
    base = segment.base_val_loss
    known = base is not None and math.isfinite(base) and base > 0
    start = base if known and base is not None else curve.first
    if not known and not segment.shows_start:
        return
    rise = curve.end - start
    far = curve.end > limits.diverged_ratio * start and rise > limits.diverged_nats
    # One batch is no average: short reports must all agree.
    sure = curve.tail_minimum > start + max(limits.diverged_nats, 4.0 * min(curve.noise, rise / 4))
    later = _later_validation(segment)
    harmed = (
        known
        and curve.points >= limits.enough
        and len(later) >= 2
        and bool(np.all(later > limits.harmed_ratio * start))
        and curve.tail_minimum > start
        and curve.end > limits.harmed_ratio * start
    )
    # Training rows may be harder than validation rows; these only compare with themselves.
    risen = len(later) > 0 and float(later.max()) > limits.harmed_ratio * start
    leapt = (
        known
        and curve.points >= limits.enough
        and _leap(segment) > (limits.leapt_ratio if risen else limits.diverged_ratio) * start
        and curve.end > (1.0 - limits.unmoved) * start
        and segment.series["train_loss"].iterations[-1] >= limits.unmoved_iterations
        and (risen or not len(later))
    )
    if not (far and (sure or curve.points < limits.enough)) and not harmed and not leapt:
        return
    if curve.points < 2 and not known:
        return
    onset = curve.onset
    if onset is None:
        onset = _first_above(segment, start + max(0.0, min(limits.diverged_nats, rise / 2)))
    back = "never came back" if curve.end > start else "has only just come back"
    began = "before the first update" if known else "in the first report"
    falls = curve.direction == "falling"
    yield Finding(
        "loss-trend.diverged",
        Severity.ERROR,
        f"The loss ends at {curve.end:.3f}; it was {start:.3f} {began}. It rose above that by "
        f"iteration {onset} and {back}"
        + (", although it has been falling since." if falls else "."),
        {
            "start": start,
            "base_validation_loss": base if known else None,
            "first_loss": curve.first,
            "last_loss": curve.last,
            "end": curve.end,
            "ratio": curve.end / start if start > 0 else None,
            "peak": float(np.nanmax(segment.series["train_loss"].values)),
            "last_validation_loss": float(later[-1]) if len(later) else None,
        },
        expected=f"below {start:.3f}, where the run began",
        onset=onset,
        fix="Lower the learning rate or the scale about tenfold, and start again from the base.",
    )


def _exploded(curve: LossFit, limits: Limits) -> Iterator[Finding]:
    level = curve.before_onset
    if curve.onset is None or level is None or curve.points < limits.enough:
        return
    rise = curve.end - level
    if curve.end < limits.exploded_ratio * level or rise < max(
        limits.diverged_nats, 3 * curve.noise
    ):
        return
    if curve.tail_minimum < level + rise / 3:
        return
    yield Finding(
        "loss-trend.exploded",
        Severity.ERROR,
        f"At iteration {curve.onset} the loss left the level of {level:.3f} that it had reached; "
        f"it ends at {curve.end:.3f}.",
        {
            "before": level,
            "end": curve.end,
            "minimum": curve.minimum,
            "minimum_at": curve.minimum_at,
            "noise": curve.noise,
        },
        expected=f"about {level:.3f} or less to the end",
        onset=curve.onset,
        fix="Keep a checkpoint saved before this iteration; lower the learning rate.",
    )


def _rose_again(segment: Segment, curve: LossFit, limits: Limits) -> Iterator[Finding]:
    validation = segment.get("val_loss")
    if validation is None or curve.points < limits.enough:
        return
    values = validation.values[np.isfinite(validation.values)]
    if len(values) < limits.validations:
        return
    # The mean of the last two: a loss that swings is caught on either swing.
    last, lowest = float(values[-2:].mean()), float(values.min())
    both = ((curve.end, curve.minimum), (last, lowest))
    if any(end < limits.risen_ratio * low or end - low < limits.risen_nats for end, low in both):
        return
    yield Finding(
        "loss-trend.rose-again",
        Severity.ERROR,
        f"The training loss fell to {curve.minimum:.3f} at iteration {curve.minimum_at} and ends "
        f"at {curve.end:.3f}; the validation loss went from {lowest:.3f} to {last:.3f}.",
        {
            "minimum": curve.minimum,
            "minimum_at": curve.minimum_at,
            "end": curve.end,
            "validation_minimum": lowest,
            "validation_end": last,
            "noise": curve.noise,
        },
        expected=f"an end within {limits.risen_ratio:g} times the minimum",
        onset=curve.minimum_at,
        fix="Use the checkpoint nearest to the minimum; lower the learning rate.",
    )


def _never_learned(
    segment: Segment,
    losses: Series,
    curve: LossFit,
    fresh: bool | None,
    limits: Limits,
) -> Iterator[Finding]:
    if fresh is False or not segment.shows_start or curve.points < limits.enough:
        return
    base = segment.base_val_loss
    start = curve.start
    if start < limits.already_low or curve.non_finite:
        return
    x, y = losses.iterations.astype(np.float64), losses.values
    span = float(x[-1] - x[0])
    slope, (low, high) = theil_sen(*blocks(x, y))
    learned, at_most = -slope * span / start, -low * span / start
    if base is not None and math.isfinite(base) and base > 0:
        learned = max(learned, 1.0 - curve.end / base)
    validation = segment.get("val_loss")
    same = (
        validation is not None
        and len(validation) >= 3
        and bool(np.all(validation.values == validation.values[0]))
    )
    # Equal validation losses outweigh the scatter of a few training reports.
    if learned >= limits.unmoved and not (same and low <= 0.0 <= high):
        return
    long = losses.iterations[-1] >= limits.unmoved_iterations
    certain = same or (long and at_most < limits.unmoved and fresh is True)
    yield Finding(
        "loss-trend.never-learned",
        Severity.ERROR if certain else Severity.WARNING,
        f"In {int(losses.iterations[-1])} iterations the loss went from {start:.3f} to "
        f"{curve.end:.3f}"
        + (
            f"; every validation loss is exactly {validation.values[0]:.4g}."
            if same and validation is not None
            else f": {max(learned, 0.0):.1%} of it was learned, at most {max(at_most, 0.0):.1%}."
        ),
        {
            "start": start,
            "end": curve.end,
            "base_validation_loss": base,
            "learned": learned,
            "learned_at_most": at_most,
            "slope_per_iteration": slope,
            "slope_interval": (low, high),
            "same_validation_losses": same,
        },
        expected=f"a loss at least {limits.unmoved:.0%} lower than at the start",
        fix="See whether the adapter's weights changed; then raise the learning rate.",
    )


def _overfitting(
    segment: Segment, curve: LossFit, passes: float | None, limits: Limits
) -> Iterator[Finding]:
    found = memorising(segment, curve, limits)
    # Few passes over many rows open a gap too, and the answers to other rows still improve.
    many = passes is not None and passes >= limits.passes
    if found is None or not (found.risen or found.is_far or (found.is_wide and many)):
        return
    severity = Severity.INFO
    if found.is_far or (found.is_wide and many):
        certain = found.climbed or (found.stale and many)
        severity = Severity.ERROR if certain else Severity.WARNING
    if found.risen and found.ratio >= limits.overfitted:
        severity = Severity.ERROR
    over = f" in {passes:.0f} passes over the rows" if many else ""
    yield Finding(
        "loss-trend.overfitting",
        severity,
        f"The validation loss was lowest at iteration {found.minimum_at} ({found.minimum:.3f}) and "
        f"ends at {found.last:.3f} while the training loss fell to {curve.end:.3f}{over}.",
        {
            "minimum": found.minimum,
            "minimum_at": found.minimum_at,
            "last": found.last,
            "ratio": found.ratio,
            "gap": found.gap,
            "gap_share": found.share,
            "settled": found.settled,
            "passes": passes,
            "training_loss": curve.end,
            "base_validation_loss": segment.base_val_loss,
        },
        expected="validation and training losses that end near each other",
        onset=found.minimum_at,
        fix="Use the checkpoint nearest to that iteration; train shorter or on more rows.",
    )


def _fresh(log: TrainingLog, config: TrainingConfig | None) -> bool | None:
    """Whether training began from the base model; None where nothing tells."""
    if log.resumed or (config is not None and config.resume_adapter_file):
        return False
    return True if config is not None or log.resumed is False else None


def _leap(segment: Segment) -> float:
    """The highest level that three reports in a row reached, in nats."""
    values = segment.series["train_loss"].values
    values = values[np.isfinite(values)]
    if len(values) < 3:
        return float(values.max())
    return float(np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1).max())


def _later_validation(segment: Segment) -> Floats:
    validation = segment.get("val_loss")
    if validation is None or segment.base_val_loss is None:
        return np.zeros(0)
    later = validation.values[1:]
    return later[np.isfinite(later)]


def _first_above(segment: Segment, level: float) -> int:
    losses = segment.series["train_loss"]
    with np.errstate(invalid="ignore"):
        above = np.flatnonzero(losses.values > level)
    return int(losses.iterations[above[0] if len(above) else 0])
