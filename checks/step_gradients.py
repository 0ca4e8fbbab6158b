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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import ParameterStep

_SOUND = "a finite gradient other than zero for every trainable parameter"
_error, _warning = (partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning))


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
        "failed": _error(
            "the gradient cannot be taken",
            says="The gradient cannot be taken by nn.value_and_grad[ ({failure})].",
            fix="let the loss take the model, and call it",
        ),
        "none": _error(
            "no trainable parameter gets a gradient",
            says="Every gradient is exactly zero ({parameters:* trainable parameter}): nothing can "
            "be learned.",
            fix="compute the loss from the output of the model that is differentiated",
        ),
        "some-zero": _error(
            "some trainable parameters get no gradient",
            says="{zero} of {expected:* trainable parameter} get a gradient of exactly zero.",
            fix="look for stop_gradient, or a layer whose output the loss does not see",
        ),
        "not-finite": _error(
            "gradients are not finite",
            says="The gradients of {broken} of {parameters:* trainable parameter} are not finite.",
            fix="look for a division by zero, a square root at zero, or an overflow in float16",
        ),
        "exploding": _warning(
            "the gradient is enormous",
            says="The gradient's norm is {gradient_norm:.3g}: a first step of that size ruins a "
            "model without clipping.",
            fix="clip the gradient's norm to 1, and use the mean over tokens, not the sum",
        ),
        "uneven": _warning(
            "gradients differ by many orders of magnitude between layers",
            says="Gradients of B range from {smallest:.1e} to {largest:.1e} over the layers.",
            fix="look at the layers with the smallest gradients",
        ),
    },
    limits=Limits(),
)
def step_gradients(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at the gradient of every trainable parameter."""
    update = step.update
    if update is None:
        raise Inconclusive("no step was made: the loss cannot be computed")
    if not update.parameters:
        raise Inconclusive("nothing is trainable")
    norms = {
        one.name: one.gradient_norm for one in update.parameters if one.gradient_norm is not None
    }
    broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
    if not norms:
        where = update.frames[-1] if update.frames else None
        measured = {"failure": update.error, "frames": update.frames}
        yield Sign("failed", measured, where=where)
    elif broken:
        yield Sign(
            "not-finite",
            {"broken": len(broken), "parameters": len(norms)},
            where=", ".join(broken[: limits.named]),
        )
    else:
        resting = _resting(update.parameters)
        expected = {name: norm for name, norm in norms.items() if name not in resting}
        yield from _sizes(norms, expected, limits)


def _resting(parameters: Iterable[ParameterStep]) -> set[str]:
    """Every A whose B is zero: it has no gradient then, and that is how an adapter begins."""
    return {
        f"{one.name.removesuffix('lora_b')}lora_a"
        for one in parameters
        if one.name.endswith("lora_b") and one.norm == 0 and one.gradient_norm is not None
    }


def _sizes(
    norms: Mapping[str, float], expected: Mapping[str, float], limits: Limits
) -> Iterator[Sign]:
    """What finite gradients tell: of all parameters, and of those that should have one."""
    norm = math.sqrt(sum(one**2 for one in norms.values()))
    measured: dict[str, Measurement] = {"gradient_norm": norm, "parameters": len(norms)}
    zero = [name for name, one in expected.items() if one == 0]
    if zero and len(zero) == len(expected):
        yield Sign("none", measured, where=", ".join(zero[: limits.named]))
        return
    if zero:
        # Only of kinds that a batch need not reach.
        are_rare = all("expert" in one or "switch" in one or "embed" in one for one in zero)
        yield Sign(
            "some-zero",
            {**measured, "zero": len(zero), "expected": len(expected)},
            where=", ".join(zero[: limits.named]),
            severity=Severity.WARNING if are_rare else None,
        )
    if norm > limits.exploding:
        yield Sign(
            "exploding",
            measured,
            where=", ".join(sorted(norms, key=lambda one: -norms[one])[: limits.named]),
        )
    like = {name: one for name, one in expected.items() if one and name.endswith("lora_b")}
    low, high = min(like.values(), default=0.0), max(like.values(), default=0.0)
    if high > limits.spread * low:
        yield Sign(
            "uneven",
            measured | {"smallest": low, "largest": high},
            where=", ".join(sorted(like, key=lambda one: like[one])[: limits.named]),
        )
