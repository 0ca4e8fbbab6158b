"""The loss does not go where the loss of a run that learns goes.

What it finds. A loss that leaps above where it began and stays there, that explodes later, that
falls and rises again, that never moves, or that repeats to the last digit; and a validation
loss that rises from its minimum, or stands far above the training loss.

Why it matters. The last value alone misleads: 9.98 looks like a number among others until one
knows that the run began at 1.86. Seen early, it saves hours.

How it is measured. A multiple of the base model's own loss (the validation loss before the
first update) is a fact. Then the curve: change points by optimal partitioning, so that a run
that exploded and fell back a little is not called decreasing; then the Theil-Sen slope with its
95% interval, widened for autocorrelation (Hamed and Rao 1998). With fewer than ten reports only
facts are judged. A rise is held against what had been learned: the share of the fall that was
lost. Levels are medians of the first and last reports. Rows are known by heart where the
validation loss stands far above the training loss; that is an error where it climbed, or fell no
more for the last part of many passes over the same rows.

When it is wrong. The training loss averages batches and the validation loss tokens, so small
differences between the two are ignored. A run resumed from a trained adapter begins at a level
it has already learned, and a log that begins in the middle does not show where it began: such
runs are not called unlearned, nor are those whose first report averages many updates without
a validation before. Rows that grow harder raise the training loss; a validation loss that stays
low then speaks against a second rise. Where the validation accuracy rises with the validation
loss, the model grows surer, which harms less. Of the loss of pairs (DPO, ORPO, CPO) only one that
ends far above where it began is judged, and of training on rewards (GRPO, PPO) none.

What to do. Take the last checkpoint before the onset. For a loss that leaps or explodes, lower
the learning rate or the scale; for one that never moves, see whether the adapter's weights
changed at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.curve import (
    Divergence,
    Limits,
    divergence,
    ends_far_above,
    has_exploded,
)
from mlxdoctor.judge.never_learned import never_learned, opens_late
from mlxdoctor.judge.second_rise import SecondRise, second_rise, validations_deny
from mlxdoctor.judge.where_to_stop import with_a_stop
from mlxdoctor.measure.exhibited import losses_shown
from mlxdoctor.measure.losses.memorising import accuracy_rose, memorising, passes_over
from mlxdoctor.measure.losses.repeats import Repetition, repetition
from mlxdoctor.measure.losses.trend import LossFit, ending, fit, level, opening
from mlxdoctor.measure.policy_curves import policy_curves

#: What the loss of pairs says nothing of: it may stay, rise again and fall to zero in a sound run.
_TRENDS = ("exploded", "rose-again", "repeats", "never-learned", "overfitting")


@check(
    codes={
        "diverged": Symptom.error(
            "the loss ends far above where it began",
            fix="Lower the learning rate or the scale, and start again from the base.",
        ),
        "exploded": Symptom.error(
            "the loss left the level it had reached and never came back",
            fix="Keep a checkpoint saved before this iteration; lower the learning rate.",
        ),
        "rose-again": Symptom.error(
            "the loss fell, and rose again",
            fix="Use the checkpoint nearest to the minimum; lower the learning rate.",
        ),
        "repeats": Symptom.error(
            "the losses repeat to the last digit: the model never moved",
            "losses that differ when the same rows come again",
            "See whether the optimiser updates the very parameters that the loss is computed with.",
        ),
        "never-learned": Symptom.warning(
            "the loss did not move",
            fix="See whether the adapter's weights changed; then raise the learning rate.",
        ),
        "overfitting": Symptom.info(
            "the validation loss rises or stays while the training loss goes on to fall",
            "validation and training losses that end near each other",
            "Use the checkpoint nearest to that iteration; train shorter or on more rows.",
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
    curve = fit(losses.iterations, losses.values) if losses is not None else None
    if losses is None or curve is None:
        raise Inconclusive("the log holds no finite training loss")
    if log.is_preference:
        yield from _of_preferences(log, config, curve, limits)
        return
    yield from _out_of_sight(segment, limits)
    if (lost := _lost(segment, losses, curve, limits)) is not None:
        yield lost
    elif (again := repetition(losses.values, limits)) is not None:
        yield _repeats(losses, again)
    else:
        yield from _never_learned(segment, curve, _fresh(log, config), limits)
        for sign in _overfitting(segment, curve, passes_over(rows, config, segment), limits):
            yield with_a_stop(sign, log, rows, config)
        yield from _learned(segment, curve, limits)
    if curve.points < limits.enough:
        more = ", from a lower steps_per_report or a longer run"
        raise Inconclusive(
            f"{curve.points} finite training losses are too few to judge a trend; "
            f"{limits.enough} are needed{more if curve.points == len(losses) else ''}"
        )


def _of_preferences(
    log: TrainingLog, config: TrainingConfig | None, curve: LossFit, limits: Limits
) -> Iterator[Sign | Unsought]:
    """A loss of pairs falls from where it begins, whatever it is; more is not known of it."""
    if policy_curves(log, config).samples:
        raise NotApplicable("the loss of training on rewards has no level or trend to judge")
    why = "the loss of preference training has no trend of its own to judge"
    yield Unsought(_TRENDS, why)
    segment = log.main
    losses = segment.series["train_loss"]
    if not segment.shows_start:
        yield Unsought(
            ("diverged",), "the log does not show where the loss began; the whole log would"
        )
    elif curve.points < limits.enough:
        raise Inconclusive(f"{curve.points} finite training losses are too few to judge a trend")
    elif (found := ends_far_above(segment, curve, limits)) is not None:
        yield _diverged(losses, curve, found, segment.unit)


def _out_of_sight(segment: Segment, limits: Limits) -> Iterator[Unsought]:
    if not segment.shows_start:
        yield Unsought(
            ("diverged", "never-learned", "rose-again"),
            "the log does not show where the loss began; the whole log would",
        )
    elif opens_late(segment, limits):
        yield Unsought(
            ("never-learned",),
            "what was learned before the first report is not in the log; "
            "a validation before training would show it",
        )
    if len(segment.finite("val_loss")) < 2:
        yield Unsought(
            ("overfitting",),
            "the log has no two validation losses to compare; validate while training",
        )


def _learned(segment: Segment, curve: LossFit, limits: Limits) -> Iterator[Seen]:
    """What the curve shows to have been learned; held-out rows alone show learning."""
    validation = segment.finite("val_loss")
    if len(validation) >= 2:
        first, last = float(validation.values[0]), float(validation.values[-1])
        if first - last >= max(limits.unmoved * first, 1e-3):
            begin, end = int(validation.iterations[0]), int(validation.iterations[-1])
            is_base = first == segment.base_val_loss
            when = "before the first update" if is_base else f"at {segment.unit} {begin}"
            yield Seen(
                f"The validation loss fell from {first:.3f} {when} to {last:.3f} at {segment.unit} "
                f"{end}.",
                {"first_validation_loss": first, "last_validation_loss": last},
                learned=True,
            )
    fall = curve.start - curve.end
    # Less is not seen in three decimals.
    if segment.shows_start and fall >= max(limits.unmoved * curve.start, 1e-3):
        yield Seen(
            f"The training loss fell from {opening(curve)} to {ending(curve)}.",
            {"start": curve.start, "end": curve.end, "reports": curve.points},
        )


def _lost(segment: Segment, losses: Series, curve: LossFit, limits: Limits) -> Sign | None:
    """How the loss was lost, by the surest sign of it."""
    if (found := divergence(segment, curve, limits)) is not None:
        return _diverged(losses, curve, found, segment.unit)
    if (exploded := _exploded(segment, curve, limits)) is not None:
        return exploded
    if (rise := second_rise(segment, curve, limits)) is not None:
        return _rose_again(curve, rise, segment.unit, limits)
    return None


def _exploded(segment: Segment, curve: LossFit, limits: Limits) -> Sign | None:
    before, onset = curve.before_onset, curve.onset
    if before is None or onset is None or not has_exploded(curve, limits):
        return None
    if validations_deny(segment, onset, limits):
        return None
    return Sign(
        "exploded",
        f"At {segment.unit} {onset} the loss left the level of {before:.3f} that it had reached; "
        f"it ends at {ending(curve)}.",
        {
            "before": before,
            "end": curve.end,
            "minimum": curve.minimum,
            "minimum_at": curve.minimum_at,
            "noise": curve.noise,
        },
        expected=f"about {before:.3f} or less to the end",
        onset=onset,
    )


def _diverged(losses: Series, curve: LossFit, found: Divergence, unit: str) -> Sign:
    start = found.start.loss
    began = "before the first update" if found.start.is_base else "in the first report"
    later = losses.values[losses.iterations >= found.onset]
    later = later[np.isfinite(later)]
    above = int((later > start).sum())
    told = "all" if above == len(later) else f"{above} of"
    message = (
        f"The loss ends at {ending(curve)}; it was {start:.3f} {began}. From {unit} "
        f"{found.onset} on {told} {len(later)} reports lie above that."
    )
    if curve.end <= start:
        message = message[:-1] + ": it has only just come back."
    return Sign(
        "diverged",
        message,
        {
            "start": start,
            "base_validation_loss": start if found.start.is_base else None,
            "first_loss": curve.first,
            "last_loss": curve.last,
            "end": curve.end,
            "ratio": curve.end / start if start > 0 else None,
            "peak": float(np.nanmax(losses.values)),
            "last_validation_loss": found.validation,
            "reports_above": above,
            "falls_at_the_end": curve.is_falling,
        },
        expected=f"below {start:.3f}, where the run began",
        onset=found.onset,
    )


def _rose_again(curve: LossFit, rise: SecondRise, unit: str, limits: Limits) -> Sign:
    message = (
        f"The training loss fell to {level(curve.minimum, curve.edge)} around {unit} "
        f"{curve.minimum_at} and ends at {ending(curve)}"
    )
    measured: dict[str, Measurement] = {
        "start": curve.start,
        "minimum": curve.minimum,
        "minimum_at": curve.minimum_at,
        "end": curve.end,
        "noise": curve.noise,
        "share_lost": rise.share if np.isfinite(rise.share) else None,
    }
    if rise.validation is not None:
        lowest, last = rise.validation
        message += (
            f"; the validation loss was {lowest:.3f} at its lowest and {last:.3f} in the mean "
        )
        message += "of the last two"
        measured |= {"validation_minimum": lowest, "validation_end": last}
    else:
        lost = "more than that fall" if rise.share > 1.0 else f"{rise.share:.0%} of that fall"
        message += f": it began at {opening(curve)}, and {lost} is lost"
    return Sign(
        "rose-again",
        f"{message}.",
        measured,
        expected=f"an end within {limits.risen_ratio:g} times the minimum",
        onset=curve.minimum_at,
        severity=None if rise.is_certain else Severity.WARNING,
    )


def _repeats(losses: Series, again: Repetition) -> Sign:
    count, each = len(losses), again.period
    if each == 1:
        message = f"The training loss is {losses.values[0]:.6g} in all {count} reports"
    else:
        message = (
            f"The training losses repeat to the last digit every {each} reports: {again.compared} "
            f"of {count} are what they were {each} reports before"
        )
    return Sign(
        "repeats",
        f"{message}; a model that learns never gives the same losses again.",
        {"period": each, "repeated": again.compared, "reports": count, "chance": again.by_chance},
        onset=int(losses.iterations[each]),
    )


def _never_learned(
    segment: Segment, curve: LossFit, fresh: bool | None, limits: Limits
) -> Iterator[Sign]:
    found = never_learned(segment, curve, fresh, limits)
    if found is None:
        return
    same = found.same_validation
    yield Sign(
        "never-learned",
        f"In {int(segment.series['train_loss'].iterations[-1])} {segment.unit}s the training loss "
        f"went from {opening(curve)} to {ending(curve)}"
        + (
            f"; every validation loss is exactly {same:.4g}."
            if same is not None
            else f": {_trend(found.falls, found.at_most)}."
        ),
        {
            "start": curve.start,
            "end": curve.end,
            "base_validation_loss": segment.base_val_loss,
            "learned": found.learned,
            "learned_at_most": found.at_most,
            "slope_per_iteration": found.slope,
            "slope_interval": found.interval,
            "same_validation_losses": same is not None,
        },
        severity=Severity.ERROR if found.is_certain else None,
        expected=f"a loss at least {limits.unmoved:.0%} lower than at the start",
    )


def _trend(falls: float, at_most: float) -> str:
    line = f"falls by {falls:.1%}" if falls >= 5e-4 else "does not fall"
    return f"a line through all reports {line}" + (
        f", or by {at_most:.1%} at most" if 5e-4 <= at_most < 1.0 else ""
    )


def _overfitting(
    segment: Segment, curve: LossFit, passes: float | None, limits: Limits
) -> Iterator[Sign]:
    found = memorising(segment, curve, limits)
    # Few passes over many rows open a gap too, and the answers to other rows still improve.
    many = passes is not None and passes >= limits.passes
    if found is None or not (found.risen or found.is_far or (found.is_wide and many)):
        return
    severity = Severity.INFO
    if found.is_far or (found.is_wide and many):
        certain = found.climbed or (found.stale and many)
        severity = Severity.ERROR if certain else Severity.WARNING
    rise = found.last - found.minimum
    if found.risen and found.ratio >= limits.overfitted and rise >= limits.risen_nats:
        severity = Severity.ERROR
    measured: dict[str, Measurement] = {
        "minimum": found.minimum,
        "minimum_at": found.minimum_at,
        "last": found.last,
        "last_validation_loss": found.final,
        "ratio": found.ratio,
        "gap": found.gap,
        "gap_share": found.share,
        "settled": found.settled,
        "passes": passes,
        "training_loss": curve.end,
        "base_validation_loss": segment.base_val_loss,
    }
    over = f" in {passes:.0f} passes over the rows" if many else ""
    fell = curve.start - curve.end >= max(limits.unmoved * curve.start, 1e-3)
    trained = f"fell to {ending(curve)}{over}" if fell else f"ends at {ending(curve)}"
    message = (
        f"The validation loss was lowest at {segment.unit} {found.minimum_at} "
        f"({found.minimum:.3f}) and is {found.final:.3f} at last, while the training loss {trained}"
    )
    if (surer := accuracy_rose(segment, found.minimum_at)) is not None:
        severity = Severity.INFO
        was, now = surer
        message += f"; the validation accuracy went from {was:.3g} to {now:.3g} meanwhile"
        measured |= {"accuracy_at_minimum": was, "last_accuracy": now}
    yield Sign("overfitting", f"{message}.", measured, onset=found.minimum_at, severity=severity)


def _fresh(log: TrainingLog, config: TrainingConfig | None) -> bool | None:
    """Whether training began from the base model; None where nothing tells."""
    if log.resumed or (config is not None and config.resume_adapter_file):
        return False
    return True if config is not None or log.resumed is False else None
