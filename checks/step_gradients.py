"""Whether a gradient reaches everything that is to be trained.

What it finds. Gradients that cannot be taken, are zero for parts of what is trainable, are not
finite, or differ by many orders of magnitude between layers.

Why it matters. A parameter without a gradient stays as it was made, however long the run is.

How it is measured. The gradient of the loss with respect to every trainable parameter, by MLX's
own nn.value_and_grad. At B = 0, where an adapter begins, the gradient of A is zero by its
nature: only B, and what is no adapter, is expected to have one.

When it is wrong. Experts that no token of this batch was sent to, and embeddings of tokens it
does not have, get none.

What to do. Look for a stop_gradient, an evaluated copy, or a layer whose output is not used.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.measure.training_step.measurement import ParameterStep, TrainingStep


@dataclass(frozen=True)
class Limits:
    """When a gradient is out of the ordinary."""

    named: int = limit(3, unit="names", source="enough to see the pattern")
    exploding: float = limit(
        1e3,
        unit="L2 norm",
        source="1,000 is extreme by any account; sound steps: at most 36",
        false_alarms="0 of 254 sound steps on four bases (reports/probe.md)",
    )
    spread: float = limit(
        1e6,
        unit="ratio",
        source="largest over smallest norm of like parameters; sound steps: at most 34",
        false_alarms="0 of 254 sound steps",
    )


@check(
    codes={
        "failed": "the gradient cannot be taken",
        "none": "no trainable parameter gets a gradient",
        "some-zero": "some trainable parameters get no gradient",
        "not-finite": "gradients are not finite",
        "exploding": "the gradient is enormous",
        "uneven": "gradients differ by many orders of magnitude between layers",
    },
    limits=Limits(),
)
def step_gradients(step: TrainingStep, limits: Limits) -> Iterator[Finding]:
    """Look at the gradient of every trainable parameter."""
    update = step.update
    if update is None:
        raise Inconclusive("no step was made: the loss cannot be computed")
    parameters = update.parameters
    if not parameters:
        raise Inconclusive("nothing is trainable")
    if all(one.gradient_norm is None for one in parameters):
        yield _finding(
            "failed",
            f"The gradient cannot be taken by nn.value_and_grad ({update.error}).",
            (),
            {},
            limits,
            fix="let the loss take the model, and call it",
        )
        return
    known = [one for one in parameters if one.gradient_norm is not None]
    broken = [one for one in known if not math.isfinite(one.gradient_norm or 0.0)]
    if broken:
        yield _finding(
            "not-finite",
            f"The gradients of {len(broken)} of {len(known)} trainable parameters are not finite.",
            broken,
            {"parameters": len(broken)},
            limits,
            fix="look for a division by zero, a square root at zero, or an overflow in float16",
        )
        return
    # A has no gradient while B is zero: that is how an adapter begins.
    at_rest = {one.name.removesuffix("lora_b") for one in known if _is_b(one) and one.norm == 0}
    expected = [one for one in known if not _is_resting_a(one, at_rest)]
    zero = [one for one in expected if one.gradient_norm == 0]
    norm = math.sqrt(sum((one.gradient_norm or 0.0) ** 2 for one in known))
    measured: dict[str, Measurement] = {"gradient_norm": norm, "parameters": len(known)}
    if expected and len(zero) == len(expected):
        yield _finding(
            "none",
            f"Every gradient is exactly zero ({len(known)} trainable parameters): nothing can be "
            f"learned.",
            zero,
            measured,
            limits,
            fix="compute the loss from the output of the model that is differentiated",
        )
        return
    if zero:
        yield _finding(
            "some-zero",
            f"{len(zero)} of {len(expected)} trainable parameters get a gradient of exactly zero.",
            zero,
            measured | {"zero": len(zero)},
            limits,
            severity=Severity.WARNING if _are_rare(zero) else Severity.ERROR,
            fix="look for stop_gradient, or a layer whose output the loss does not see",
        )
    if norm > limits.exploding:
        yield _finding(
            "exploding",
            f"The gradient's norm is {norm:.3g}: a first step of that size ruins a model without "
            f"clipping.",
            sorted(known, key=lambda one: -(one.gradient_norm or 0.0)),
            measured,
            limits,
            severity=Severity.WARNING,
            fix="clip the gradient's norm to 1, and use the mean over tokens, not the sum",
        )
    like = [one for one in expected if one.gradient_norm and _is_b(one)]
    if like:
        norms = [one.gradient_norm or 0.0 for one in like]
        if max(norms) > limits.spread * min(norms):
            yield _finding(
                "uneven",
                f"Gradients of B range from {min(norms):.1e} to {max(norms):.1e} over the layers.",
                sorted(like, key=lambda one: one.gradient_norm or 0.0),
                measured | {"smallest": min(norms), "largest": max(norms)},
                limits,
                severity=Severity.WARNING,
                fix="look at the layers with the smallest gradients",
            )


def _is_b(one: ParameterStep) -> bool:
    return one.name.endswith("lora_b")


def _is_resting_a(one: ParameterStep, at_rest: set[str]) -> bool:
    return one.name.endswith("lora_a") and one.name.removesuffix("lora_a") in at_rest


def _are_rare(zero: Sequence[ParameterStep]) -> bool:
    """Only of kinds that a batch need not reach."""
    return all("expert" in one.name or "switch" in one.name or "embed" in one.name for one in zero)


def _finding(
    symptom: str,
    message: str,
    parameters: Sequence[ParameterStep],
    measured: dict[str, Measurement],
    limits: Limits,
    *,
    severity: Severity = Severity.ERROR,
    fix: str,
) -> Finding:
    names = [one.name for one in parameters[: limits.named]]
    return Finding(
        code=f"step-gradients.{symptom}",
        severity=severity,
        message=message,
        measured=measured,
        expected="a finite gradient other than zero for every trainable parameter",
        where=", ".join(names) or None,
        fix=fix,
    )
