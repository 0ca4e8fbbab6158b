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

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.curve import Limits, divergence, has_exploded, second_rise, start_of
from mlxdoctor.measure.exhibited import losses_shown
from mlxdoctor.measure.losses.memorising import memorising, passes_over
from mlxdoctor.measure.losses.trend import LossFit, blocks, fit, theil_sen


@check(
    codes={
        "diverged": Symptom.error(
            "the loss ends far above where it began",
            fix="Lower the learning rate or the scale about tenfold, and start again from the "
            "base.",
        ),
        "exploded": Symptom.error(
            "the loss left the level it had reached and never came back",
            fix="Keep a checkpoint saved before this iteration; lower the learning rate.",
        ),
        "rose-again": Symptom.error(
            "training and validation losses fell, and rose again",
            fix="Use the checkpoint nearest to the minimum; lower the learning rate.",
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
        raise NotApplicable("the loss of preference training has no level or trend to judge")
    yield from _out_of_sight(segment)
    if (lost := _lost(segment, losses, curve, limits)) is not None:
        yield lost
    else:
        yield from _never_learned(segment, losses, curve, _fresh(log, config), limits)
        yield from _overfitting(segment, curve, passes_over(rows, config, segment), limits)
        yield from _learned(segment, losses, curve, limits)
    if curve.points < limits.enough:
        raise Inconclusive(
            f"{curve.points} finite training losses are too few to judge a trend; "
            f"{limits.enough} are needed"
        )


def _out_of_sight(segment: Segment) -> Iterator[Unsought]:
    if not segment.shows_start:
        yield Unsought(
            ("diverged", "never-learned"),
            "the log does not show where the loss began; the whole log would",
        )
    validation = segment.get("val_loss")
    if validation is None or int(np.isfinite(validation.values).sum()) < 2:
        yield Unsought(
            ("overfitting", "rose-again"),
            "the log has no two validation losses to compare; validate while training",
        )


def _learned(segment: Segment, losses: Series, curve: LossFit, limits: Limits) -> Iterator[Seen]:
    """What the curve shows to have been learned; held-out rows alone show learning."""
    if not segment.shows_start:
        return
    validation = segment.get("val_loss")
    known = np.isfinite(validation.values) if validation is not None else np.zeros(0, bool)
    if validation is not None and known.sum() >= 2:
        values, iterations = validation.values[known], validation.iterations[known]
        first, last = float(values[0]), float(values[-1])
        if first - last >= limits.unmoved * first:
            began = int(iterations[0])
            when = (
                "before the first update"
                if segment.base_val_loss is not None
                else f"at iteration {began}"
            )
            yield Seen(
                f"The validation loss fell from {first:.3f} {when} to {last:.3f} at iteration "
                f"{int(iterations[-1])}.",
                {"first_validation_loss": first, "last_validation_loss": last},
                learned=True,
            )
    if curve.start - curve.end >= limits.unmoved * curve.start:
        yield Seen(
            f"The training loss fell from {curve.start:.3f} to {curve.end:.3f} in "
            f"{int(losses.iterations[-1])} iterations.",
            {"start": curve.start, "end": curve.end},
        )


def _lost(segment: Segment, losses: Series, curve: LossFit, limits: Limits) -> Sign | None:
    """How the loss was lost, by the surest sign of it."""
    if (found := divergence(segment, curve, limits)) is not None:
        start = found.start.loss
        back = "never came back" if curve.end > start else "has only just come back"
        began = "before the first update" if found.start.is_base else "in the first report"
        return Sign(
            "diverged",
            f"The loss ends at {curve.end:.3f}; it was {start:.3f} {began}. It rose above that by "
            f"iteration {found.onset} and {back}"
            + (", although it has been falling since." if curve.is_falling else "."),
            {
                "start": start,
                "base_validation_loss": start if found.start.is_base else None,
                "first_loss": curve.first,
                "last_loss": curve.last,
                "end": curve.end,
                "ratio": curve.end / start if start > 0 else None,
                "peak": float(np.nanmax(losses.values)),
                "last_validation_loss": found.validation,
            },
            expected=f"below {start:.3f}, where the run began",
            onset=found.onset,
        )
    level = curve.before_onset
    if has_exploded(curve, limits) and level is not None:
        return Sign(
            "exploded",
            f"At iteration {curve.onset} the loss left the level of {level:.3f} that it had "
            f"reached; it ends at {curve.end:.3f}.",
            {
                "before": level,
                "end": curve.end,
                "minimum": curve.minimum,
                "minimum_at": curve.minimum_at,
                "noise": curve.noise,
            },
            expected=f"about {level:.3f} or less to the end",
            onset=curve.onset,
        )
    if (validation := second_rise(segment, curve, limits)) is not None:
        lowest, last = validation
        return Sign(
            "rose-again",
            f"The training loss fell to {curve.minimum:.3f} at iteration {curve.minimum_at} and "
            f"ends at {curve.end:.3f}; the validation loss went from {lowest:.3f} to {last:.3f}.",
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
        )
    return None


def _never_learned(
    segment: Segment, losses: Series, curve: LossFit, fresh: bool | None, limits: Limits
) -> Iterator[Sign]:
    if fresh is False or not segment.shows_start or curve.points < limits.enough:
        return
    start = curve.start
    if start < limits.already_low or not np.isfinite(losses.values).all():
        return
    x, y = losses.iterations.astype(np.float64), losses.values
    span = float(x[-1] - x[0])
    slope, (low, high) = theil_sen(*blocks(x, y))
    learned, at_most = -slope * span / start, -low * span / start
    before = start_of(segment, curve)
    if before.is_base:
        learned = max(learned, 1.0 - curve.end / before.loss)
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
    yield Sign(
        "never-learned",
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
            "base_validation_loss": segment.base_val_loss,
            "learned": learned,
            "learned_at_most": at_most,
            "slope_per_iteration": slope,
            "slope_interval": (low, high),
            "same_validation_losses": same,
        },
        severity=Severity.ERROR if certain else None,
        expected=f"a loss at least {limits.unmoved:.0%} lower than at the start",
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
    if found.risen and found.ratio >= limits.overfitted:
        severity = Severity.ERROR
    over = f" in {passes:.0f} passes over the rows" if many else ""
    yield Sign(
        "overfitting",
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
        onset=found.minimum_at,
        severity=severity,
    )


def _fresh(log: TrainingLog, config: TrainingConfig | None) -> bool | None:
    """Whether training began from the base model; None where nothing tells."""
    if log.resumed or (config is not None and config.resume_adapter_file):
        return False
    return True if config is not None or log.resumed is False else None
