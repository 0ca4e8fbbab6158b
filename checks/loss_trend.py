"""The loss does not go where the loss of a run that learns goes.

What it finds. A loss that ends far above where it began, that never moves, or that repeats to the
last digit; and a validation loss that rises from its minimum, or stands far above the training
loss. (A loss that fell and rose again is a row of the check `series-facts`.)

Why it matters. The last value alone misleads: 9.98 looks like a number among others until one
knows that the run began at 1.86. Seen early, it saves hours.

How it is measured. A multiple of the base model's own loss (the validation loss before the
first update) is a fact. Levels are medians of the first and last reports. Whether a level loss
still falls is asked of the Theil-Sen slope and its 95% interval, widened for autocorrelation. With
fewer than ten reports only facts are judged. Rows are known by heart where the validation loss
stands far above the training loss; that is an error where it climbed, or fell no more for the last
part of many passes over the same rows.

When it is wrong. The training loss averages batches and the validation loss tokens, so small
differences between the two are ignored. A run resumed from a trained adapter begins at a level
it has already learned, and a log that begins in the middle does not show where it began: such
runs are not called unlearned, nor are those whose first report averages many updates without
a validation before. Of the loss of pairs (DPO, ORPO, CPO) only one that ends far above where it
began is judged, and of training on rewards (GRPO, PPO) none.

What to do. Take the last checkpoint before the onset. For a loss that leaps, lower the
learning rate or the scale; for one that never moves, see whether the adapter's weights changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe, noise, smoothed, trend
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Save, Segment, Series, TrainingLog
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.curve import CALIBRATION, above, start_of
from mlxdoctor.judge.curve import Limits as CurveLimits
from mlxdoctor.measure.exhibited import losses_shown
from mlxdoctor.measure.policy_curves import policy_curves
from mlxdoctor.safety.quoting import quoted

_START = "{start:.3f}[ (median of the first {edge} reports)]"
_END = "{end:.3f}[ (median of the last {edge} reports)]"


@dataclass(frozen=True)
class Limits(CurveLimits):
    """When a loss curve is not that of a run that learns."""

    enough: int = limit(
        10, unit="reports", source="Theil-Sen intervals are wider than the trend below that"
    )
    harmed_ratio: float = limit(
        1.05,
        unit="every later validation loss over the first",
        source="validation batches differ by under 2% between evaluations of an unchanged model",
        false_alarms=CALIBRATION,
    )
    leapt_ratio: float = limit(
        1.15,
        unit="highest level of three reports over the start",
        source="with nothing learned by the end; healthy runs stay below 1.05",
        false_alarms=CALIBRATION,
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
        false_alarms=CALIBRATION,
    )
    unmoved_iterations: int = limit(
        100, unit="iterations", source="warm-up and low rates need some", false_alarms=CALIBRATION
    )
    undecided: float = limit(
        0.15,
        unit="share of the starting loss that may have been learned after all, by the interval",
        source="scattered reports leave the slope open",
        false_alarms="14 of 3,000 simulated sound curves get the warning, none an error",
    )
    already_low: float = limit(0.3, unit="nats", source="little is left to learn below")
    overfitting: float = limit(
        1.05, unit="last validation loss over its minimum", source="twice the noise of validation"
    )
    memorised: float = limit(
        5.0,
        unit="validation loss over training loss at the end",
        source="runs on 12 rows end above 10, those on 200 rows below 1.5; an error only if the "
        "validation loss has its minimum in the first half and ends four noises above it",
        false_alarms=CALIBRATION,
    )
    gap_nats: float = limit(0.5, unit="nats between the two at the end", source="one noisy batch")
    few_unimproved: float = limit(
        0.9,
        unit="last validation loss over the first, of two or three",
        source="held-out rows gained nothing while the training rows were learned by heart",
        false_alarms="0 of 12 logs: 4 sound fixture runs, one of the ward, 7 public ones",
    )
    few_certain: float = limit(
        10.0,
        unit="validation loss over training loss, with a rise between two or three validations",
        source="a public run on 245 rows: 2.07 to 2.23 beside 0.04 to 0.2",
    )
    validations: int = limit(4, unit="validation losses", source="a minimum needs both sides")
    settled_share: float = limit(
        0.01,
        unit="of the fall of the validation loss that may be missing",
        source="the noise of a validation set of 24 rows",
    )
    settled_by: float = limit(
        0.6,
        unit="share of the run after which the validation loss fell no more",
        source="24 rows and fewer 0.42 at most; 200 rows 0.9 at least",
        false_alarms=CALIBRATION,
    )
    passes: float = limit(
        10.0,
        unit="passes over the different rows",
        source="sound runs make 1 to 5, those that memorised 30 to 375",
        false_alarms=CALIBRATION,
    )


@check(
    codes={
        "diverged": Symptom.error(
            "the loss ends far above where it began",
            "below {start:.3f}, where the run began",
            "Lower the learning rate or the scale, and start again from the base.",
            says=f"The loss ends at {_END}; it was {{start:.3f}} {{began}}. From {{unit}} "
            "{onset} on {reports_above} of {later_reports:* report} lie above that[: it has only "
            "just come back{has_come_back}].",
        ),
        "repeats": Symptom.error(
            "the losses repeat to the last digit: the model never moved",
            "losses that differ when the same rows come again",
            "See whether the optimiser updates the very parameters that the loss is computed with.",
            says="[The training loss is {constant:.6g} in all {reports} reports|The training "
            "losses repeat to the last digit every {period} reports: {repeated} of {reports} are "
            "what they were {period} reports before]; a model that learns never gives the same "
            "losses again.",
        ),
        "never-learned": Symptom.warning(
            "the loss did not move",
            "a loss at least 5% lower than at the start",
            "See whether the adapter's weights changed; then raise the learning rate.",
            says=f"In {{iterations}} {{unit}}s the training loss went from {_START} to {_END}"
            "[; every validation loss is exactly {same_validation_loss:.4g}|: a line through all "
            "reports falls by {learned_by_the_line:.1%}, and by {learned_at_most:.1%} at most].",
        ),
        "overfitting": Symptom.info(
            "the validation loss rises or stays while the training loss goes on to fall",
            "validation and training losses that end near each other",
            "[use {nearest_save}, saved nearest to it; or ][train again and stop at {stop_at}]",
            says="The validation loss was lowest at {unit} {minimum_at} ({minimum:.3f}) and is "
            "{last_validation_loss:.3f} at last, while the training loss [fell to {fell_to:.3f}|"
            "ends at {training_loss:.3f}][ in {many_passes:.0f} passes over the rows].",
        ),
    },
    limits=Limits(),
    marks_onset=True,
    rerun_symptom=True,
)
def loss_trend(
    log: TrainingLog,
    limits: Limits,
    config: TrainingConfig | None,
    rows: SupervisedRows | None,
    base: BaseModel | None,
) -> Iterator[Sign | LossCurve | Seen | Unsought]:
    """Judge the curve of the log's main segment."""
    segment = log.main
    yield from losses_shown(segment, base, rows)
    losses = segment.get("train_loss")
    curve = describe(losses.iterations, losses.values) if losses is not None else None
    if losses is None or curve is None or not curve.points:
        raise Inconclusive("the log holds no finite training loss")
    if log.is_preference and policy_curves(log, config).samples:
        raise NotApplicable("the loss of training on rewards has no level or trend to judge")
    yield from _out_of_sight(log, limits)
    if (sign := _diverged(segment, curve, limits, is_mean=not log.is_preference)) is not None:
        yield sign
    # The loss of pairs may stay, rise again and fall to zero in a sound run.
    elif not log.is_preference:
        if curve.repeats is not None:
            again = curve.repeats
            yield Sign(
                "repeats",
                {
                    "period": again.period,
                    "constant": curve.first if again.period == 1 else None,
                    "repeated": again.compared,
                    "reports": curve.count,
                    "chance": again.by_chance,
                },
                onset=int(losses.iterations[again.period]),
            )
        elif (sign := _never_learned(segment, curve, _fresh(log, config), limits)) is not None:
            yield sign
        if (sign := _overfitting(log, curve, rows, config, limits)) is not None:
            yield sign
        yield from _learned(segment, curve, limits)
    if curve.points < limits.enough:
        more = ", from a lower steps_per_report or a longer run"
        raise Inconclusive(
            f"{curve.points} finite training losses are too few to judge a trend; "
            f"{limits.enough} are needed{more if curve.points == curve.count else ''}"
        )


def _out_of_sight(log: TrainingLog, limits: Limits) -> Iterator[Unsought]:
    segment = log.main
    if not segment.shows_start:
        why = "the log does not show where the loss began; the whole log would"
        yield Unsought(("diverged", "never-learned"), why)
    if log.is_preference:
        why = "the loss of preference training has no trend of its own to judge"
        yield Unsought(("repeats", "never-learned", "overfitting"), why)
        return
    if segment.shows_start and _opens_late(segment, limits):
        yield Unsought(
            ("never-learned",),
            "what was learned before the first report is not in the log; "
            "a validation before training would show it",
        )
    if len(segment.finite("val_loss")) < 2:
        why = "the log has no two validation losses to compare; validate while training"
        yield Unsought(("overfitting",), why)


def _learned(segment: Segment, curve: SeriesFacts, limits: Limits) -> Iterator[Seen]:
    """What the curve shows to have been learned; held-out rows alone show learning."""
    validation = segment.finite("val_loss")
    if len(validation) >= 2:
        first, last = float(validation.values[0]), float(validation.values[-1])
        # Less is not seen in three decimals.
        if first - last >= max(limits.unmoved * first, 1e-3):
            is_base = first == segment.base_val_loss
            yield Seen(
                "The validation loss fell from {first_validation_loss:.3f} [at {unit} {first_at}|"
                "before the first update] to {last_validation_loss:.3f} at {unit} {last_at}.",
                {
                    "first_validation_loss": first,
                    "last_validation_loss": last,
                    "unit": segment.unit,
                    "first_at": None if is_base else int(validation.iterations[0]),
                    "last_at": int(validation.iterations[-1]),
                },
                learned=True,
            )
    if segment.shows_start and curve.start - curve.end >= max(limits.unmoved * curve.start, 1e-3):
        figures = {**_levels(curve), "reports": curve.points}
        yield Seen(f"The training loss fell from {_START} to {_END}.", figures)


def _levels(curve: SeriesFacts) -> dict[str, Measurement]:
    edge = curve.edge if curve.edge > 1 else None
    return {"start": curve.start, "end": curve.end, "edge": edge, "noise": curve.noise}


def _diverged(
    segment: Segment, curve: SeriesFacts, limits: Limits, *, is_mean: bool
) -> Sign | None:
    """A loss that ends above its start, or has only just come back.

    With few reports only a large rise counts. Of a loss that is no mean over tokens only one that
    ends far above counts: it may leap from batch to batch.
    """
    start = start_of(segment, curve)
    is_long = curve.points >= limits.enough
    if not segment.shows_start or (not start.is_base and curve.points < 2):
        return None
    if not is_mean and not is_long:
        return None
    is_far = above(curve.end, start.loss, limits.exploded_ratio, limits.diverged_nats)
    # One batch is no average: short reports must all agree.
    margin = max(limits.diverged_nats, 4.0 * min(curve.noise, (curve.end - start.loss) / 4))
    is_far = is_far and (not is_long or curve.tail_minimum > start.loss + margin)
    # The untouched model's loss is a fact: less above it will do.
    if not is_far and not (
        is_mean and start.is_base and is_long and _is_harmed(segment, curve, start.loss, limits)
    ):
        return None
    losses = segment.finite("train_loss")
    onset = curve.onset
    if onset is None:
        rise = max(0.0, min(limits.diverged_nats, (curve.end - start.loss) / 2))
        onset = int(losses.iterations[int(np.argmax(losses.values > start.loss + rise))])
    later = losses.values[losses.iterations >= onset]
    return Sign(
        "diverged",
        {
            **_levels(curve),
            "start": start.loss,
            "began": "before the first update" if start.is_base else "in the first report",
            "unit": segment.unit,
            "base_validation_loss": start.loss if start.is_base else None,
            "first_loss": curve.first,
            "last_loss": curve.last,
            "ratio": curve.end / start.loss if start.loss > 0 else None,
            "peak": curve.highest,
            "reports_above": int((later > start.loss).sum()),
            "later_reports": len(later),
            "has_come_back": "" if curve.end <= start.loss else None,
        },
        onset=onset,
    )


def _is_harmed(segment: Segment, curve: SeriesFacts, start: float, limits: Limits) -> bool:
    """Whether both losses stay above the base model's, or the loss leapt and learned nothing.

    Training rows may be harder than validation rows. These only compare with themselves: where
    they rose, a lower leap counts, and where they did not, none does.
    """
    later = segment.series["val_loss"].values[1:]
    later = later[np.isfinite(later)]
    harmed = limits.harmed_ratio * start
    is_harmed = len(later) >= 2 and bool((later > harmed).all())
    if is_harmed and curve.tail_minimum > start and curve.end > harmed:
        return True
    if len(later) and later.max() <= harmed:
        return False
    ratio = limits.leapt_ratio if len(later) else limits.exploded_ratio
    values = segment.finite("train_loss").values
    is_back_at_most = curve.end > (1.0 - limits.unmoved) * start
    is_long = segment.series["train_loss"].iterations[-1] >= limits.unmoved_iterations
    return bool(smoothed(values, 3).max() > ratio * start and is_back_at_most and is_long)


def _opens_late(segment: Segment, limits: Limits) -> bool:
    """Whether the steepest part of a sound curve could lie before the first report."""
    first = int(segment.series["train_loss"].iterations[0])
    is_counted = segment.axis in ("iteration", "step")
    return segment.base_val_loss is None and is_counted and first > limits.late


def _never_learned(
    segment: Segment, curve: SeriesFacts, fresh: bool | None, limits: Limits
) -> Sign | None:
    """What shows that nothing was learned; None where something was, or may have been."""
    is_short = curve.points < limits.enough or curve.non_finite.count
    if fresh is False or not segment.shows_start or is_short or curve.start < limits.already_low:
        return None
    losses, start = segment.series["train_loss"], start_of(segment, curve)
    validation = segment.get("val_loss")
    same = None
    if validation is not None and len(validation) >= 3 and np.ptp(validation.values) == 0.0:
        same = float(validation.values[0])
    # Hundreds of reports that lie level outweigh a few that fall in every slope.
    fell = curve.start - curve.end > 4.0 * curve.noise / math.sqrt(curve.edge)
    learned = 1.0 - curve.end / start.loss if start.is_base else 0.0
    learned = max(learned, curve.fall if fell else 0.0)
    if learned >= limits.unmoved and (same is None or fell):
        return None
    line = trend(losses.iterations, losses.values)
    span = float(losses.iterations[-1] - losses.iterations[0])
    falls, at_most = -line.slope * span / curve.start, -line.low * span / curve.start
    is_level = same is not None and line.low <= 0.0 <= line.high and not fell
    if max(learned, falls) >= limits.unmoved and not is_level:
        return None
    is_scattered = at_most >= limits.undecided > limits.unmoved
    if same is None and (_opens_late(segment, limits) or is_scattered):
        return None
    is_long = bool(losses.iterations[-1] >= limits.unmoved_iterations)
    is_certain = same is not None or (is_long and at_most < limits.unmoved and fresh is True)
    return Sign(
        "never-learned",
        {
            **_levels(curve),
            "iterations": int(losses.iterations[-1]),
            "unit": segment.unit,
            "base_validation_loss": segment.base_val_loss,
            "same_validation_loss": same,
            "learned": max(learned, falls),
            "learned_by_the_line": max(falls, 0.0),
            "learned_at_most": at_most if math.isfinite(at_most) else None,
        },
        severity=Severity.ERROR if is_certain else None,
    )


def _fresh(log: TrainingLog, config: TrainingConfig | None) -> bool | None:
    """Whether training began from the base model; None where nothing tells."""
    if log.resumed or (config is not None and config.resume_adapter_file):
        return False
    return True if config is not None or log.resumed is False else None


def _overfitting(
    log: TrainingLog,
    curve: SeriesFacts,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
    limits: Limits,
) -> Sign | None:
    """A validation loss that left its minimum, or stands far above the training loss."""
    segment = log.main
    validation = segment.finite("val_loss")
    values, iterations = validation.values, validation.iterations
    lowest = int(np.argmin(values)) if len(values) else 0
    if len(values) < 2 or values[lowest] <= 0.0:
        return None
    minimum, minimum_at = float(values[lowest]), int(iterations[lowest])
    first, final, later = float(values[0]), float(values[-1]), values[lowest + 1 :]
    is_few = len(values) < limits.validations
    last = final if is_few else float(np.median(later[-2:])) if len(later) else minimum
    rise, gap = last - minimum, last / max(curve.end, 1e-9)
    risen = last / minimum >= limits.overfitting
    is_apart = last - curve.end >= limits.gap_nats
    passes = _passes_over(rows, config, segment)
    # Few passes over many rows open a gap too, and the answers to other rows still improve.
    many = passes if passes is not None and passes >= limits.passes else None
    if is_few:
        # Only a loss many times the training loss tells, where the held-out rows gained nothing.
        is_wide = is_apart and gap >= limits.memorised
        if not is_wide or final < limits.few_unimproved * first:
            return None
        climbed, stale = risen and gap >= limits.few_certain, False
    else:
        # How far neighbouring validation losses differ anyway.
        band = 3.0 * noise(values) if len(values) >= 6 else 0.0
        risen = risen and len(later) >= 2 and rise >= band and curve.end < last
        stale = _is_stale(validation, limits)
        climbed = _has_climbed(validation)
        is_wide = is_apart and gap >= limits.memorised and (len(later) >= 2 or stale)
    if not risen and not is_wide:
        return None
    is_high = last / minimum >= limits.overfitted or climbed
    is_memorised = is_wide and (climbed or (stale and many is not None))
    severity = Severity.WARNING if is_wide else Severity.INFO
    if is_memorised or (risen and is_high and rise >= limits.risen_nats):
        severity = Severity.ERROR
    fell = curve.start - curve.end >= max(limits.unmoved * curve.start, 1e-3)
    return Sign(
        "overfitting",
        {
            "unit": segment.unit,
            "minimum": minimum,
            "minimum_at": minimum_at,
            "last": last,
            "last_validation_loss": final,
            "ratio": last / minimum,
            "gap": gap,
            "passes": passes,
            "many_passes": many,
            "training_loss": curve.end,
            "fell_to": curve.end if fell else None,
            "base_validation_loss": segment.base_val_loss,
            **_where_to_stop(log, minimum_at),
        },
        onset=minimum_at,
        severity=severity,
    )


def _is_stale(validation: Series, limits: Limits) -> bool:
    """Whether the validation loss fell no more for a good part of the run."""
    values, iterations = validation.values, validation.iterations
    minimum = float(values.min())
    near = minimum + limits.settled_share * (float(values[0]) - minimum)
    settled = float(iterations[int(np.argmax(values <= near))] - iterations[0])
    return settled <= limits.settled_by * float(iterations[-1] - iterations[0])


def _has_climbed(validation: Series) -> bool:
    """Whether the later validation losses lie above a minimum in the first half.

    By four noises: the minimum of noisy values lies some two noises low by itself.
    """
    values, iterations = validation.values, validation.iterations
    lowest = int(np.argmin(values))
    later = values[lowest + 1 :]
    if len(later) < 5 or iterations[lowest] > (iterations[0] + iterations[-1]) / 2:
        return False
    rise = float(later[len(later) // 2 :].min() - values[lowest])
    return rise > 4.0 * noise(values[lowest:])


def _passes_over(
    rows: SupervisedRows | None, config: TrainingConfig | None, segment: Segment
) -> float | None:
    """How often training went over each different row; None where that is unknown."""
    batch = config.batch_size if config is not None else None
    if rows is None or not rows.rows or not batch or segment.axis not in ("iteration", "step"):
        return None
    # Estimated from the rows that were read.
    different = len({row.tokens.tobytes() for row in rows.rows}) / len(rows.rows)
    trained = int(segment.series["train_loss"].iterations[-1]) * batch
    return trained / round(different * rows.total_rows)


def _where_to_stop(log: TrainingLog, iteration: int) -> dict[str, Measurement]:
    """Where a run that overfitted is to be stopped, and which save is nearest to it."""
    segment = log.main
    end = int(segment.series["train_loss"].iterations[-1])
    # Before training there was nothing to stop at.
    first = min(int(series.iterations[0]) for series in segment.series.values())
    if segment.axis not in ("iteration", "step") or iteration <= first or iteration >= end:
        return {}
    saves = {save.iteration: save for save in log.saves if save.iteration is not None}
    near = min(saves, key=lambda save: abs(save - iteration), default=end)
    return {
        "advised_iters": iteration,
        "stop_at": f"{segment.unit} {iteration}",
        "nearest_save": _file_of(saves[near]) if near < end else None,
    }


def _file_of(save: Save) -> str:
    names = [PurePath(name).name for name in save.files]
    numbered = [name for name in names if str(save.iteration) in name]
    return quoted(numbered[0]) if numbered else f"the save of iteration {save.iteration}"
