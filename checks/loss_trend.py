"""The loss does not go where the loss of a run that learns goes.

What it finds. A loss that ends far above where it began, that falls and rises again, that never
moves, or that repeats to the last digit; and a validation loss that rises from its minimum, or
stands far above the training loss.

Why it matters. The last value alone misleads: 9.98 looks like a number among others until one
knows that the run began at 1.86. Seen early, it saves hours.

How it is measured. A multiple of the base model's own loss (the validation loss before the
first update) is a fact. Levels are medians of the first and last reports; a rise is held against
what had been learned, the share of the fall that was lost. Whether a level loss still falls is
asked of the Theil-Sen slope and its 95% interval, widened for autocorrelation. With fewer than ten
reports only facts are judged. Rows are known by heart where the validation loss stands far above
the training loss; that is an error where it climbed, or fell no more for the last part of many
passes over the same rows.

When it is wrong. The training loss averages batches and the validation loss tokens, so small
differences between the two are ignored. A run resumed from a trained adapter begins at a level
it has already learned, and a log that begins in the middle does not show where it began: such
runs are not called unlearned, nor are those whose first report averages many updates without
a validation before. Rows that grow harder raise the training loss; a validation loss that stays
low then speaks against a second rise. Where the validation accuracy rises with the validation
loss, the model grows surer, which harms less. Of the loss of pairs (DPO, ORPO, CPO) only one that
ends far above where it began is judged, and of training on rewards (GRPO, PPO) none.

What to do. Take the last checkpoint before the onset. For a loss that leaps or rises, lower the
learning rate or the scale; for one that never moves, see whether the adapter's weights changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.engines.series import Floats, SeriesFacts, describe, smoothed, trend
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Save, Segment, TrainingLog
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.curve import CALIBRATION, above, start_of
from mlxdoctor.judge.curve import Limits as CurveLimits
from mlxdoctor.measure.exhibited import losses_shown
from mlxdoctor.measure.losses.memorising import FEW_ROWS, different_rows, memorising, passes_over
from mlxdoctor.measure.policy_curves import policy_curves
from mlxdoctor.safety.quoting import quoted

#: What the loss of pairs says nothing of: it may stay, rise again and fall to zero in a sound run.
_TRENDS = ("rose-again", "repeats", "never-learned", "overfitting")
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
        "rose-again": Symptom.error(
            "the loss fell, and rose again",
            "an end near the minimum",
            "Use the checkpoint nearest to the minimum; lower the learning rate.",
            says="The training loss fell from {start:.3f} to {minimum:.3f} around {unit} "
            f"{{minimum_at}} and ends at {_END}[; {{share_lost:.0%}} of that fall is lost][; the "
            "validation loss was {validation_minimum:.3f} at its lowest and {validation_end:.3f} "
            "in the mean of the last two].",
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
            "[use {nearest_save}, saved nearest to it; or ][train again and stop at {stop_at}]"
            "[, which is {passes_until_then:.3g} passes over the {different_rows} rows]"
            "[; {few_rows} rows are few, and more of them help most]",
            says="The validation loss was lowest at {unit} {minimum_at} ({minimum:.3f}) and is "
            "{last_validation_loss:.3f} at last, while the training loss [fell to {fell_to:.3f}|"
            "ends at {training_loss:.3f}][ in {many_passes:.0f} passes over the rows][; the "
            "validation accuracy went from {accuracy_at_minimum:.3g} to {last_accuracy:.3g} "
            "meanwhile].",
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
    if log.is_preference:
        yield from _of_preferences(log, config, curve, limits)
        return
    yield from _out_of_sight(segment, limits)
    if (
        sign := _diverged(segment, curve, limits) or _rose_again(segment, curve, limits)
    ) is not None:
        yield sign
    elif curve.repeats is not None:
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
    else:
        if (sign := _never_learned(segment, curve, _fresh(log, config), limits)) is not None:
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


def _of_preferences(
    log: TrainingLog, config: TrainingConfig | None, curve: SeriesFacts, limits: Limits
) -> Iterator[Sign | Unsought]:
    """A loss of pairs falls from where it begins, whatever it is; more is not known of it."""
    if policy_curves(log, config).samples:
        raise NotApplicable("the loss of training on rewards has no level or trend to judge")
    yield Unsought(_TRENDS, "the loss of preference training has no trend of its own to judge")
    if not log.main.shows_start:
        why = "the log does not show where the loss began; the whole log would"
        yield Unsought(("diverged",), why)
    elif curve.points < limits.enough:
        raise Inconclusive(f"{curve.points} finite training losses are too few to judge a trend")
    elif (sign := _diverged(log.main, curve, limits, is_mean=False)) is not None:
        yield sign


def _out_of_sight(segment: Segment, limits: Limits) -> Iterator[Unsought]:
    if not segment.shows_start:
        why = "the log does not show where the loss began; the whole log would"
        yield Unsought(("diverged", "never-learned", "rose-again"), why)
    elif _opens_late(segment, limits):
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
    segment: Segment, curve: SeriesFacts, limits: Limits, *, is_mean: bool = True
) -> Sign | None:
    """A loss that ends above its start, or has only just come back.

    With few reports only a large rise counts. Of a loss that is no mean over tokens only one that
    ends far above counts: it may leap from batch to batch.
    """
    start = start_of(segment, curve)
    if not start.is_base and (not segment.shows_start or curve.points < 2):
        return None
    is_long = curve.points >= limits.enough
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
    later = _finite(segment.series["val_loss"].values[1:])
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


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _rose_again(segment: Segment, curve: SeriesFacts, limits: Limits) -> Sign | None:
    """Whether both losses, or the training loss where nothing contradicts it, rose again."""
    fall, rise = curve.start - curve.minimum, curve.end - curve.minimum
    if not segment.shows_start or curve.points < 5 or max(curve.first - curve.minimum, fall) < 0.01:
        return None
    validation = segment.finite("val_loss")
    measured: dict[str, Measurement] = {
        **_levels(curve),
        "unit": segment.unit,
        "minimum": curve.minimum,
        "minimum_at": curve.minimum_at,
        "share_lost": rise / fall if fall > 0 else None,
    }
    is_long = curve.points >= limits.enough
    if len(validation) >= limits.validations:
        # The mean of the last two: a loss that swings is caught on either swing.
        last, lowest = float(validation.values[-2:].mean()), float(validation.values.min())
        both = ((curve.end, curve.minimum), (last, lowest))
        if is_long and all(
            end >= limits.risen_ratio * low and end - low >= limits.risen_nats for end, low in both
        ):
            measured |= {"validation_minimum": lowest, "validation_end": last}
            return Sign("rose-again", measured, onset=curve.minimum_at)
    # The scatter of a few reports can't be told from where they go: each must average some.
    least = limits.lost_noises * curve.noise if is_long else limits.diverged_nats
    if rise < limits.lost_share * fall or min(rise, fall) < max(limits.risen_nats, least):
        return None
    losses = segment.finite("train_loss")
    if not is_long and np.median(np.diff(losses.iterations)) < 5:
        return None
    # One batch, or two, are no rise; and rows that grow harder leave the validation loss low.
    if losses.values[-3:].min() < curve.minimum + rise / 2 or _is_denied(segment, curve, limits):
        return None
    is_certain = is_long and rise >= limits.lost_for_certain * fall
    severity = None if is_certain else Severity.WARNING
    return Sign("rose-again", measured, onset=curve.onset or curve.minimum_at, severity=severity)


def _is_denied(segment: Segment, curve: SeriesFacts, limits: Limits) -> bool:
    """Whether a validation well after the onset of a rise is as low as any."""
    validation = segment.finite("val_loss")
    if len(validation) < 2:
        return False
    middle = (curve.minimum_at + int(segment.series["train_loss"].iterations[-1])) / 2
    is_low = validation.values[-1] <= limits.harmed_ratio * validation.values.min()
    return bool(validation.iterations[-1] >= middle and is_low)


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


def _overfitting(
    log: TrainingLog,
    curve: SeriesFacts,
    rows: SupervisedRows | None,
    config: TrainingConfig | None,
    limits: Limits,
) -> Sign | None:
    segment = log.main
    course = memorising(segment, curve, limits)
    passes = passes_over(rows, config, segment)
    # Few passes over many rows open a gap too, and the answers to other rows still improve.
    many = passes if passes is not None and passes >= limits.passes else None
    if course is None:
        return None
    is_wide = course.is_far or (course.is_wide and many is not None)
    if not course.risen and not is_wide:
        return None
    severity = Severity.WARNING if is_wide else Severity.INFO
    rise = course.last - course.minimum
    is_high = course.ratio >= limits.overfitted or course.climbed
    is_memorised = is_wide and (course.climbed or (course.stale and many is not None))
    if is_memorised or (course.risen and is_high and rise >= limits.risen_nats):
        severity = Severity.ERROR
    was, now = _accuracies(segment, course.minimum_at)
    fell = curve.start - curve.end >= max(limits.unmoved * curve.start, 1e-3)
    return Sign(
        "overfitting",
        {
            "unit": segment.unit,
            "minimum": course.minimum,
            "minimum_at": course.minimum_at,
            "last": course.last,
            "last_validation_loss": course.final,
            "ratio": course.ratio,
            "gap": course.gap,
            "gap_share": course.share,
            "settled": course.settled,
            "passes": passes,
            "many_passes": many,
            "training_loss": curve.end,
            "fell_to": curve.end if fell else None,
            "base_validation_loss": segment.base_val_loss,
            "accuracy_at_minimum": was,
            "last_accuracy": now,
            **_where_to_stop(log, course.minimum_at, rows, config),
        },
        onset=course.minimum_at,
        severity=Severity.INFO if now is not None else severity,
    )


def _accuracies(segment: Segment, since: int) -> tuple[float | None, float | None]:
    """The validation accuracy at an iteration and at last, where it did not fall."""
    for name, series in segment.series.items():
        words = set(name.split("_"))
        if not words & {"val", "valid", "validation", "eval"} or not words & {"accuracy", "acc"}:
            continue
        place = np.flatnonzero(series.iterations[:-1] == since)
        if len(place) and np.isfinite(series.values).all():
            was, now = float(series.values[place[0]]), float(series.values[-1])
            if now >= was:
                return was, now
    return None, None


def _where_to_stop(
    log: TrainingLog, iteration: int, rows: SupervisedRows | None, config: TrainingConfig | None
) -> dict[str, Measurement]:
    """Where a run that overfitted is to be stopped, and which save is nearest to it."""
    segment = log.main
    end = int(segment.series["train_loss"].iterations[-1])
    # Before training there was nothing to stop at.
    first = min(int(series.iterations[0]) for series in segment.series.values())
    if segment.axis not in ("iteration", "step") or iteration <= first or iteration >= end:
        return {}
    batch = config.batch_size if config is not None else None
    is_whole = rows is not None and 0 < len(rows.rows) == rows.total_rows
    different = different_rows(rows) if rows is not None and is_whole else 0
    saves = {save.iteration: save for save in log.saves if save.iteration is not None}
    near = min(saves, key=lambda save: abs(save - iteration), default=end)
    return {
        "advised_iters": iteration,
        "stop_at": f"{segment.unit} {iteration}",
        "nearest_save": _file_of(saves[near]) if near < end else None,
        "different_rows": different or None,
        "passes_until_then": iteration * batch / different if different and batch else None,
        "few_rows": different if 0 < different < FEW_ROWS else None,
    }


def _file_of(save: Save) -> str:
    names = [PurePath(name).name for name in save.files]
    numbered = [name for name in names if str(save.iteration) in name]
    return quoted(numbered[0]) if numbered else f"the save of iteration {save.iteration}"


def _fresh(log: TrainingLog, config: TrainingConfig | None) -> bool | None:
    """Whether training began from the base model; None where nothing tells."""
    if log.resumed or (config is not None and config.resume_adapter_file):
        return False
    return True if config is not None or log.resumed is False else None
