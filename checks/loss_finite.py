"""The loss, or what it was computed from, is not a number.

What it finds. Training losses that are NaN or infinite; validation losses that are, while the
training losses are fine; losses of exactly zero, among them those that hide a NaN; and a run
that trained on no token at all.

Why it matters. These are facts, not opinions. One update with a NaN gradient turns every
trained weight into NaN, and no later report brings them back: the model then prints token 0.

How it is measured. Every report is looked at, those before a start that was announced again
included where the iterations go on. The validation loss before the first update
tells whether the model was sound until it was trained. A loss of exactly zero counts where
the report before was above 0.1; a loss that crept down to 0.000 was rounded.

When it is wrong. A validation loss is NaN as well where there were no validation batches. Group
-relative preference training begins at a loss of zero by construction, so there a zero is only
a warning.

What to do. Go back to a checkpoint saved before the onset. NaN from the first report on points
to the backward pass or to rows without a target; NaN after many good reports to the step size
or to half precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought


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
    untrained: int = limit(30, unit="iterations", source="a first batch may be empty")


#: How a loss became non-finite.
_NOT_FINITE = {
    "non-finite": "the training loss is NaN or infinite from the first report on",
    "non-finite-before-training": "the loss is not finite before the first update either",
    "non-finite-after-rise": "the loss rose, and then was not finite",
    "non-finite-after-fall": "the loss was healthy until it was not finite",
    "non-finite-now-and-then": "some losses are not finite, and those after them are",
}
_USE_AN_EARLIER_ONE = "Use a checkpoint saved before this iteration; none saved after it is usable."
_NONE_IS_USABLE = (
    "No checkpoint of this run is usable. See whether the base model answers, whether each row has "
    "a token to learn from, and whether the first steps are small enough."
)
#: What to do, where no checkpoint lies before the onset.
_FIXES = {
    "non-finite": _NONE_IS_USABLE,
    "non-finite-before-training": "Generate a few answers with the base model alone; if they are "
    "garbage, download or convert it again.",
}


@check(
    codes={
        **{
            code: Symptom.error(
                meaning, "finite losses throughout", _FIXES.get(code, _USE_AN_EARLIER_ONE)
            )
            for code, meaning in _NOT_FINITE.items()
        },
        "validation-non-finite": Symptom.warning(
            "a validation loss is NaN although the training loss is finite",
            "finite validation losses",
            "Give the run validation rows with something to predict, and val_batches above 0.",
        ),
        "hidden-non-finite": Symptom.error(
            "the loss is exactly 0 while the gradient norm is NaN",
            "a finite loss above 0 and a finite gradient norm",
            "Discard checkpoints from this point on.",
        ),
        "exact-zero": Symptom.error(
            "the training loss is exactly 0",
            "a loss above 0: no model predicts text with certainty",
            "See whether those batches have any token to learn from.",
        ),
        "no-trained-tokens": Symptom.error(
            "the count of trained tokens stays at 0",
            "a count that grows with every batch",
            "See which tokens of a row are supervised, and lengthen max_seq_length if none is.",
        ),
    },
    limits=Limits(),
    marks_onset=True,
    rerun_symptom=True,
)
def loss_finite(log: TrainingLog, limits: Limits) -> Iterator[Sign | Unsought]:
    """Judge the values of the log's main segment, one by one."""
    segment = _from_its_start(log)
    losses = segment.get("train_loss")
    if losses is None:
        raise Inconclusive("the log holds no training loss")
    yield from _not_finite(segment, losses, limits)
    yield from _exactly_zero(segment, losses, log.is_preference, limits)
    yield from _no_tokens(segment, limits)
    if segment.get("val_loss") is None:
        why = "the log has no validation loss; validate while training"
        yield Unsought(("validation-non-finite",), why)
    if segment.base_val_loss is None and np.isfinite(losses.values[0]):
        why = "the log has no validation from before the first update; let the run validate first"
        yield Unsought(("non-finite-before-training",), why)
    if segment.get("trained_tokens") is None:
        why = "the log does not count the tokens that were trained on"
        yield Unsought(("no-trained-tokens",), why)


def _from_its_start(log: TrainingLog) -> Segment:
    """The main segment with those before it that it goes on from: a start said twice is none."""
    joined = log.main
    before: list[Segment] = []
    for one in log.segments:
        if one is log.main:
            break
        if one.name == joined.name:
            before.append(one)
    for earlier in reversed(before):
        if not _goes_on(earlier, joined):
            break
        series = {
            name: _after(earlier.get(name), joined.get(name))
            for name in dict.fromkeys((*earlier.series, *joined.series))
        }
        joined = replace(
            joined,
            series={name: one for name, one in series.items() if one is not None},
            first_line=earlier.first_line,
        )
    return joined


def _goes_on(earlier: Segment, later: Segment) -> bool:
    one, other = earlier.get("train_loss"), later.get("train_loss")
    if one is None or other is None or earlier.axis != later.axis or later.axis == "row":
        return False
    last = max(int(each.iterations[-1]) for each in earlier.series.values() if len(each))
    first = min(int(each.iterations[0]) for each in later.series.values() if len(each))
    return last < first


def _after(earlier: Series | None, later: Series | None) -> Series | None:
    if earlier is None or later is None:
        return earlier if later is None else later
    return Series(
        np.concatenate([earlier.iterations, later.iterations]),
        np.concatenate([earlier.values, later.values]),
    )


def _not_finite(segment: Segment, losses: Series, limits: Limits) -> Iterator[Sign]:
    bad = np.flatnonzero(~np.isfinite(losses.values))
    if not len(bad):
        yield from _only_validation(segment)
        return
    first = int(bad[0])
    base = segment.base_val_loss
    symptom, story = _story(segment, losses, first, limits)
    yield Sign(
        symptom,
        story,
        {
            "non_finite_reports": len(bad),
            "reports": len(losses),
            "first_loss": _plain(losses.values[0]),
            "last_finite_loss": _last_finite(losses, first),
            "base_validation_loss": None if base is None else _plain(base),
        },
        onset=int(losses.iterations[first]),
    )


def _story(segment: Segment, losses: Series, first: int, limits: Limits) -> tuple[str, str]:
    """The symptom, and the sentence that says how the loss became non-finite."""
    base = segment.base_val_loss
    onset = int(losses.iterations[first])
    good = losses.values[:first]
    if base is not None and not math.isfinite(base):
        return (
            "non-finite-before-training",
            f"The validation loss before the first update is not finite, and neither is the "
            f"training loss at {segment.unit} {onset}: the model was not sound to begin with.",
        )
    bad = int(np.sum(~np.isfinite(losses.values)))
    if bad < len(losses) - first:
        return (
            "non-finite-now-and-then",
            f"The training loss is not finite in {bad} of {len(losses)} reports, first at "
            f"{segment.unit} {onset}, and finite in between.",
        )
    if not len(good):
        story = f"The training loss is not finite in the first report ({segment.unit} {onset})"
        story += f" and in the {len(losses) - 1} after it" if len(losses) > 1 else ""
        if base is not None:
            story += (
                f", although the validation loss before the first update was {base:.3f}: the model "
                "was sound until it was trained"
            )
        return "non-finite", story + "."
    # Where it began, or the lowest it reached: a loss may fall before it rises.
    reference = min([float(good.min()), *([base] if base is not None else [])])
    last = float(good[int(np.argmin(good)) :][-3:].max())
    story = (
        f"The training loss is not finite from {segment.unit} {onset} on; the report before it is "
    )
    story += f"{good[-1]:.4g}"
    if last > limits.risen_ratio * reference and last > reference + limits.risen_nats:
        since = "the lowest before"
        if base is not None and reference == base < float(good.min()):
            since = "the validation loss before the first update"
        return "non-finite-after-rise", f"{story}, and {since} is {reference:.4g}."
    if len(good) < 2 and base is None:
        return "non-finite", story + "."
    return "non-finite-after-fall", f"{story}, and nothing announced it."


def _only_validation(segment: Segment) -> Iterator[Sign]:
    validation = segment.get("val_loss")
    if validation is None or np.isfinite(validation.values).all():
        return
    wrong = np.flatnonzero(~np.isfinite(validation.values))
    yield Sign(
        "validation-non-finite",
        f"{len(wrong)} of {len(validation)} validation losses are not finite although every "
        "training loss is: nothing was validated there.",
        {"non_finite_validations": len(wrong), "validations": len(validation)},
        onset=int(validation.iterations[wrong[0]]),
    )


def _exactly_zero(
    segment: Segment, losses: Series, preference: bool, limits: Limits
) -> Iterator[Sign]:
    zero = losses.values == 0.0
    if not zero.any():
        return
    first = int(np.argmax(zero))
    onset = int(losses.iterations[first])
    norms = segment.get("grad_norm")
    broken = norms is not None and bool(
        np.isin(losses.iterations[zero], norms.iterations[~np.isfinite(norms.values)]).any()
    )
    before = _last_finite(losses, first)
    measured: dict[str, Measurement] = {
        "zero_reports": int(zero.sum()),
        "reports": len(losses),
        "loss_before": before,
        "gradient_norm_non_finite": broken,
    }
    if broken:
        yield Sign(
            "hidden-non-finite",
            f"The loss is exactly 0 in {int(zero.sum())} of {len(losses)} reports, first at "
            f"{segment.unit} {onset}, and the gradient norm is not finite there: a zero stands for "
            "a loss that was NaN.",
            measured,
            onset=onset,
        )
    # A loss that has crept down to 0.000 was rounded; one that drops to it was not.
    # Rewards and margins tell what a loss of 0 does not: in GRPO it is 0 by construction.
    elif (before is None or before > limits.rounded) and not (preference and _rewarded(segment)):
        yield Sign(
            "exact-zero",
            f"The training loss is exactly 0 in {int(zero.sum())} of {len(losses)} reports, first "
            f"at {segment.unit} {onset}: "
            + ("no answer is preferred there." if preference else "no token is compared there."),
            measured,
            onset=onset,
            severity=Severity.WARNING if preference else None,
        )


def _rewarded(segment: Segment) -> bool:
    """Whether any reward or margin is other than 0: those tell more than the loss."""
    marks = {"reward", "rewards", "margin", "margins", "r"}
    return any(
        marks & set(name.split("_")) and bool(np.any(series.values != 0.0))
        for name, series in segment.series.items()
    )


def _no_tokens(segment: Segment, limits: Limits) -> Iterator[Sign]:
    tokens = segment.get("trained_tokens")
    if tokens is None or len(tokens) < 3 or not np.isfinite(tokens.values).all():
        return
    # The coloured table rounds to 0.1k, so a small growth can hide; a zero total can't.
    if np.all(tokens.values == 0.0) and tokens.iterations[-1] >= limits.untrained:
        yield Sign(
            "no-trained-tokens",
            f"No token was trained on in {int(tokens.iterations[-1])} {segment.unit}s.",
            {"trained_tokens": 0, "iterations": int(tokens.iterations[-1])},
            onset=int(tokens.iterations[0]),
        )


def _last_finite(losses: Series, before: int) -> float | None:
    finite = np.flatnonzero(np.isfinite(losses.values[:before]))
    return float(losses.values[finite[-1]]) if len(finite) else None


def _plain(value: float) -> float | str:
    """A number that JSON can hold: NaN and infinities become words."""
    return float(value) if math.isfinite(value) else str(float(value))
