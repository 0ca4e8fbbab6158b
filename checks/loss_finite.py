"""The loss, or what it was computed from, is not a number.

What it finds. Training losses that are NaN or infinite; validation losses that are, while the
training losses are fine; losses of exactly zero, among them those that hide a NaN.

Why it matters. These are facts, not opinions. One update with a NaN gradient turns every
trained weight into NaN, and no later report brings them back: the model then prints token 0.

How it is measured. Every report is looked at. The validation loss before the first update
tells whether the model was sound until it was trained. A loss of exactly zero counts where
the report before was above 0.1; a loss that crept down to 0.000 was rounded.

When it is wrong. A validation loss is NaN as well where there were no validation batches.
Training on preferences and rewards may have a loss of zero by construction: there it is a warning,
and no finding where rewards or margins other than zero are logged.

What to do. Go back to a checkpoint saved before the onset. NaN from the first report on points
to the backward pass or to rows without a target; NaN after many good reports to the step size
or to half precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought

_FINITE = "finite losses throughout"
#: Finite losses before the first that is not, of which the highest is held against the lowest.
_LAST = 3
_AN_EARLIER_SAVE = "Use a checkpoint saved before this iteration; none saved after it is usable."
_ZERO = "The loss is exactly 0 in {zero_reports} of {reports:* report}, first at {unit} {onset}"
_LATE = (
    "The training loss is not finite from {unit} {onset} on; the report before it is {before:.4g}"
)


@dataclass(frozen=True)
class Limits:
    """When a zero is more than a rounded small number, and a NaN was announced by a rise."""

    rounded: float = limit(
        0.1,
        unit="nats in the report before",
        source="a loss printed to three digits is 0.000 only after it was near it",
    )
    risen_ratio: float = limit(
        1.3,
        unit="last finite losses over the lowest before them",
        source="batches differ by less; runs that diverge into NaN double at least",
    )
    risen_nats: float = limit(0.3, unit="nats", source="small losses double with the batch")


@check(
    codes={
        "non-finite": Symptom.error(
            "the training loss is NaN or infinite from the first report on",
            _FINITE,
            "No checkpoint of this run is usable. See whether the base model answers, whether each "
            "row has a token to learn from, and whether the first steps are small enough.",
            says="The training loss is not finite from {unit} {onset} on, in {non_finite_reports} "
            "of {reports:* report}[, although the validation loss before the first update was "
            "{base_validation_loss:.3f}: the model was sound until it was trained].",
        ),
        "non-finite-before-training": Symptom.error(
            "the loss is not finite before the first update either",
            _FINITE,
            "Generate a few answers with the base model alone; if they are garbage, download or "
            "convert it again.",
            says="The validation loss before the first update is not finite, and neither is the "
            "training loss at {unit} {onset}: the model was not sound to begin with.",
        ),
        "non-finite-after-rise": Symptom.error(
            "the loss rose, and then was not finite",
            _FINITE,
            _AN_EARLIER_SAVE,
            says=f"{_LATE}, where the lowest before, or the validation loss before training, was "
            "{lowest:.4g}.",
        ),
        "non-finite-after-fall": Symptom.error(
            "the loss was healthy until it was not finite",
            _FINITE,
            _AN_EARLIER_SAVE,
            says=f"{_LATE}, and nothing announced it.",
        ),
        "non-finite-now-and-then": Symptom.error(
            "some losses are not finite, and those after them are",
            _FINITE,
            "See which batches these were, and compare a save from before with one from after.",
            says="The training loss is not finite in {non_finite_reports} of {reports:* report}, "
            "first at {unit} {onset}, and finite in between.",
        ),
        "validation-non-finite": Symptom.warning(
            "a validation loss is NaN although the training loss is finite",
            "finite validation losses",
            "Give the run validation rows with something to predict, and val_batches above 0.",
            says="{non_finite_validations} of {validations:* validation loss/validation losses} "
            "are not finite[ although all {reports:* training loss/training losses} are]: nothing "
            "was validated there.",
        ),
        "hidden-non-finite": Symptom.error(
            "the loss is exactly 0 while the gradient norm is NaN",
            "a finite loss above 0 and a finite gradient norm",
            "Discard checkpoints from this point on.",
            says=f"{_ZERO}, and the gradient norm is not finite there: a zero stands for a loss "
            "that was NaN.",
        ),
        "exact-zero": Symptom.error(
            "the training loss is exactly 0",
            "a loss above 0: no model predicts text with certainty",
            "See whether those batches have any token to learn from.",
            says=f"{_ZERO}: no token is compared, or no answer preferred, there.",
        ),
    },
    limits=Limits(),
    marks_onset=True,
    rerun_symptom=True,
)
def loss_finite(log: TrainingLog, limits: Limits) -> Iterator[Sign | Unsought]:
    """Judge the values of the log's main segment, one by one."""
    segment = log.main
    losses, validation = segment.get("train_loss"), segment.get("val_loss")
    facts = describe(losses.iterations, losses.values) if losses is not None else None
    if losses is not None and facts is not None and facts.non_finite.count:
        yield _not_finite(segment, losses, facts, limits)
    elif validation is not None:
        validated = describe(validation.iterations, validation.values)
        if validated.non_finite.count:
            measured: dict[str, Measurement] = {
                "non_finite_validations": validated.non_finite.count,
                "validations": validated.count,
                "reports": facts.count if facts is not None else None,
            }
            yield Sign("validation-non-finite", measured, onset=validated.non_finite.first)
    else:
        why = "the log has no validation loss; validate while training"
        yield Unsought(("validation-non-finite",), why)
    if losses is None or facts is None:
        raise Inconclusive("the log holds no training loss")
    if facts.zeros.count:
        yield from _exactly_zero(segment, losses, facts, limits, preference=log.is_preference)
    # Where the very first training loss is not finite, the model may have been broken before.
    if segment.base_val_loss is None and np.isfinite(losses.values[0]):
        why = "the log has no validation from before the first update; let the run validate first"
        yield Unsought(("non-finite-before-training",), why)


def _not_finite(segment: Segment, losses: Series, facts: SeriesFacts, limits: Limits) -> Sign:
    """How the loss became non-finite."""
    base = segment.base_val_loss
    first_bad = int(np.argmin(np.isfinite(losses.values)))
    good = losses.values[:first_bad]
    measured: dict[str, Measurement] = {
        "unit": segment.unit,
        "non_finite_reports": facts.non_finite.count,
        "reports": facts.count,
        "base_validation_loss": base if base is None or math.isfinite(base) else None,
    }
    if base is not None and not math.isfinite(base):
        code = "non-finite-before-training"
    elif facts.points > len(good):
        code = "non-finite-now-and-then"
    elif not len(good) or (len(good) < 2 and base is None):
        code = "non-finite"
    else:
        # Where it began, or the lowest it reached: a loss may fall before it rises.
        lowest = min([float(good.min()), *([base] if base is not None else [])])
        last = float(good[int(np.argmin(good)) :][-_LAST:].max())
        measured |= {"before": float(good[-1]), "lowest": lowest}
        has_risen = last > max(limits.risen_ratio * lowest, lowest + limits.risen_nats)
        code = "non-finite-after-rise" if has_risen else "non-finite-after-fall"
    return Sign(code, measured, onset=facts.non_finite.first)


def _exactly_zero(
    segment: Segment, losses: Series, facts: SeriesFacts, limits: Limits, *, preference: bool
) -> Iterator[Sign]:
    zero = losses.values == 0.0
    before = losses.values[: int(np.argmax(zero))]
    before = before[np.isfinite(before)]
    norms = segment.get("grad_norm")
    is_hidden = norms is not None and bool(
        np.isin(losses.iterations[zero], norms.iterations[~np.isfinite(norms.values)]).any()
    )
    measured: dict[str, Measurement] = {
        "unit": segment.unit,
        "zero_reports": facts.zeros.count,
        "reports": facts.count,
        "loss_before": float(before[-1]) if len(before) else None,
    }
    if is_hidden:
        yield Sign("hidden-non-finite", measured, onset=facts.zeros.first)
    # Rewards and margins tell what a loss of 0 does not: in GRPO it is 0 by construction.
    elif (not len(before) or before[-1] > limits.rounded) and not (
        preference and _is_rewarded(segment)
    ):
        severity = Severity.WARNING if preference else None
        yield Sign("exact-zero", measured, onset=facts.zeros.first, severity=severity)


def _is_rewarded(segment: Segment) -> bool:
    """Whether any reward or margin is other than 0: those tell more than the loss."""
    marks = {"reward", "rewards", "margin", "margins", "r"}
    return any(
        marks & set(name.split("_")) and bool(np.any(series.values != 0.0))
        for name, series in segment.series.items()
    )
