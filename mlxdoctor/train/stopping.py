"""How far a run has come, and whether it should go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from mlxdoctor.check import limit
from mlxdoctor.judge.curve import Limits, above
from mlxdoctor.train.settings import Extras
from mlxdoctor.train.step_records import Ending, StepRecord, ValidationRecord


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


@dataclass(frozen=True)
class TrainingProgress:
    """What a resumed run must know of its past.

    Attributes:
        iteration: the last finished one.
        trained_tokens: supervised tokens so far.
        skipped: batches left out so far.
        untouched: the validation loss before any update, nats; None without one.
        opening: the first losses, nats.
        recent: the last losses, nats.
        best: the lowest validation loss; None before the first.
        waited: validations since then.
    """

    iteration: int = 0
    trained_tokens: int = 0
    skipped: int = 0
    untouched: float | None = None
    opening: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    best: float | None = None
    waited: int = 0


def after_step(
    progress: TrainingProgress, step: StepRecord, limits: DivergenceLimits
) -> TrainingProgress:
    """The progress once a step is made; a skipped batch's loss is not remembered."""
    opening, recent = progress.opening, progress.recent
    if not step.skipped_this:
        recent = (*recent, step.train_loss)[-limits.window :]
        if len(opening) < limits.opening:
            opening = (*opening, step.train_loss)
    return replace(
        progress,
        iteration=step.iteration,
        trained_tokens=step.trained_tokens,
        skipped=step.skipped,
        opening=opening,
        recent=recent,
    )


def after_validation(progress: TrainingProgress, validation: ValidationRecord) -> TrainingProgress:
    """The progress once the split is validated; NaN is no improvement."""
    if validation.iteration == 0 and not math.isnan(validation.val_loss):
        progress = replace(progress, untouched=validation.val_loss)
    if progress.best is None or validation.val_loss < progress.best:
        best = progress.best if math.isnan(validation.val_loss) else validation.val_loss
        return replace(progress, best=best, waited=0)
    return replace(progress, waited=progress.waited + 1)


def why_stop(
    progress: TrainingProgress, extras: Extras, limits: DivergenceLimits
) -> tuple[Ending, str] | None:
    """Why the run should end here, as an ending and a sentence; None to go on."""
    if extras.skip_limit is not None and progress.skipped > extras.skip_limit:
        return "too-many-skipped", (
            f"{progress.skipped} batches had a loss or gradient that was not finite; "
            f"more than {extras.skip_limit} are not skipped"
        )
    if extras.watches_divergence and diverged(progress, limits):
        return "diverged", (
            f"the loss of the last {limits.window} batches is {median(progress.recent):.3f}, "
            f"where the untouched model has {untouched_loss(progress):.3f}"
        )
    if extras.patience is not None and progress.waited >= extras.patience:
        return "no-improvement", (
            f"{progress.waited} validations in a row were no better than {progress.best:.3f}"
        )
    return None


def diverged(progress: TrainingProgress, limits: DivergenceLimits) -> bool:
    """Whether the recent losses are far above those of the untouched model."""
    if len(progress.recent) < limits.window or len(progress.opening) < limits.opening:
        return False
    return is_diverging(progress.recent, untouched_loss(progress), limits)


def untouched_loss(progress: TrainingProgress) -> float:
    """The loss before training, in nats: the higher of its estimates, so as not to stop early.

    The first batch is seen before any update, but may be an easy one: without a
    validation to go with it, the median of the first few stands in.
    """
    if progress.untouched is None:
        return median(progress.opening)
    return max(progress.untouched, progress.opening[0])
