"""Whether a trainer's loss is a number that a sound model can give.

What it finds. A loss that cannot be computed, is not finite or is not a mean over tokens; logits
that are not finite; a loss above that of a uniform guess.

Why it matters. What is not finite before the first update is so for ever, and a loss above ln of
the vocabulary says that targets, weights or tokenizer are not what they seem.

How it is measured. One forward pass over the given batch with dropout off.

When it is wrong. A loss may be a sum, may weigh tokens, or have terms beside the cross-entropy.
Losses of pairs and of policies are no means over tokens, and are not held against the guess. A
small model that is sure of other words starts above the uniform guess, up to 1.14 nats in healthy
runs; it is an error from 1.5 on.

What to do. Print the inputs and targets of one row side by side.
"""

import math
from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.training_step.measurement import TrainingStep

#: No mean over tokens is so many times ln of the vocabulary.
SUM = 3.0
#: Nats above the uniform guess, as in loss-level: sound runs of small bases start up to 1.03 above,
#: 254 sound steps up to 1.14 (reports/probe.md).
ABOVE_UNIFORM = 1.5


@check(
    codes={
        "failed": Symptom.error(
            "the loss cannot be computed",
            says="The loss cannot be computed on this batch[ ({failure})].",
            expected="a finite scalar",
            fix="call the loss by hand with one batch",
        ),
        "not-finite": Symptom.error(
            "the loss or the logits are not finite",
            says="The {what} of this batch is not finite before any update (loss {loss:g}, "
            "[{dtype}|no] logits).",
            expected="a finite loss",
            fix="guard a division by the number of supervised tokens, and look for rows with none",
        ),
        "above-uniform": Symptom.error(
            "the loss is above that of a uniform guess",
            says="The loss is {loss:.2f} before any update, {beyond:.2f} nats above a uniform "
            "guess over the vocabulary ({uniform:.2f}).",
            expected="below {uniform:.2f}",
            fix="print inputs and targets of a row side by side: the targets are the next tokens",
        ),
        "not-a-mean": Symptom.warning(
            "the loss is too large for a mean over tokens",
            says="The loss is {loss:.1f}, {times:.1f} times that of a uniform guess "
            "({uniform:.2f}): it is a sum, or targets are far off.",
            expected="at most {uniform:.2f} nats a token",
            fix="divide by the number of supervised tokens, so that rate and clipping hold",
        ),
    },
)
def step_forward(step: TrainingStep) -> Iterator[Sign | Unsought]:
    """Look at the loss of one forward pass."""
    forward = step.forward
    if forward is None:
        where = step.frames[-1] if step.frames else None
        yield Sign("failed", {"failure": step.failure, "frames": step.frames}, where=where)
        return
    loss, uniform = forward.loss, forward.uniform
    measured: dict[str, Measurement] = {
        "loss": loss,
        "uniform": uniform,
        "dtype": forward.dtype,
    }
    if not forward.finite_logits:
        fix = "check the base model's own output, and its weights"
        yield Sign("not-finite", {**measured, "what": "output"}, fix=fix)
    elif not math.isfinite(loss):
        yield Sign("not-finite", {**measured, "what": "loss"})
    elif step.is_contrast:
        yield Unsought(("above-uniform", "not-a-mean"), "a loss of pairs or of a policy is no mean")
    elif uniform is not None and loss > SUM * uniform:
        # So large that it is most likely a sum: a choice of the trainer's, and no broken target.
        yield Sign("not-a-mean", {**measured, "times": loss / uniform})
    elif uniform is not None and loss > uniform:
        yield Sign(
            "above-uniform",
            {**measured, "beyond": loss - uniform},
            severity=None if loss - uniform > ABOVE_UNIFORM else Severity.WARNING,
        )
