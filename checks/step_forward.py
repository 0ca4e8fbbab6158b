"""Whether a trainer's loss is a number that a sound model can give.

What it finds. A loss that cannot be computed, is not finite or is not a mean over tokens; logits
that are not finite; a loss above that of a uniform guess.

Why it matters. What is not finite before the first update is so for ever, and a loss above ln of
the vocabulary says that targets, weights or tokenizer are not what they seem.

How it is measured. One forward pass over the given batch with dropout off, and one more with every
adapter switched off, which gives the base model's own loss.

When it is wrong. A loss may be a sum, may weigh tokens, or have terms beside the cross-entropy. A
small model that is sure of other words starts above the uniform guess, up to 1.5 nats in healthy
runs; only beyond that is it an error.

What to do. Print the inputs and targets of one row side by side.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import check, limit
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.training_step.measurement import TrainingStep


@dataclass(frozen=True)
class Limits:
    """How far above the uniform guess a loss may be."""

    above_uniform: float = limit(
        1.5,
        unit="nats",
        source="as loss-level: sound runs of small bases start up to 1.03 nats above",
        false_alarms="0 of 254 sound steps, at most 1.14 nats above (reports/probe.md)",
    )
    summed: float = limit(
        3.0, unit="times ln of the vocabulary", source="no mean over tokens is so large"
    )


@check(
    codes={
        "failed": "the loss cannot be computed",
        "not-finite": "the loss or the logits are not finite",
        "above-uniform": "the loss is above that of a uniform guess",
        "not-a-mean": "the loss is too large for a mean over tokens",
    },
    limits=Limits(),
)
def step_forward(step: TrainingStep, limits: Limits) -> Iterator[Finding]:
    """Look at the loss of one forward pass."""
    forward = step.forward
    if forward is None:
        yield Finding(
            code="step-forward.failed",
            severity=Severity.ERROR,
            message=f"The loss cannot be computed on this batch ({step.failure}).",
            expected="a finite scalar",
            fix="call the loss by hand with one batch",
        )
        return
    measured = {
        "loss": forward.loss,
        "without_adapter": forward.without_adapter,
        "uniform": forward.uniform,
        "dtype": forward.dtype,
    }
    if not math.isfinite(forward.loss) or not forward.finite_logits:
        what = "loss" if forward.finite_logits else "logits"
        yield Finding(
            code="step-forward.not-finite",
            severity=Severity.ERROR,
            message=f"The {what} of this batch is not finite before any update "
            f"(loss {forward.loss:g}, {forward.dtype or 'no'} logits).",
            measured=measured,
            expected="a finite loss",
            fix="guard a division by the number of supervised tokens, and look for rows with none"
            if forward.finite_logits
            else "check the base model's own output, and its weights",
        )
        return
    uniform = forward.uniform
    if uniform is not None and forward.loss > limits.summed * uniform:
        yield Finding(
            code="step-forward.not-a-mean",
            severity=Severity.WARNING,
            message=f"The loss is {forward.loss:.1f}, {forward.loss / uniform:.1f} times that of a "
            f"uniform guess ({uniform:.2f}): it is a sum, or targets are far off.",
            measured=measured,
            expected=f"at most {uniform:.2f} nats a token",
            fix="divide by the number of supervised tokens, so that rate and clipping hold",
        )
    elif uniform is not None and forward.loss > uniform:
        beyond = forward.loss - uniform
        yield Finding(
            code="step-forward.above-uniform",
            severity=Severity.ERROR if beyond > limits.above_uniform else Severity.WARNING,
            message=f"The loss is {forward.loss:.2f} before any update, {beyond:.2f} nats above a "
            f"uniform guess over the vocabulary ({uniform:.2f}).",
            measured=measured,
            expected=f"below {uniform:.2f}",
            fix="print inputs and targets of a row side by side: the targets are the next tokens",
        )
