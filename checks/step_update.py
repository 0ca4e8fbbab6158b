"""Whether a training step changes what it should, and nothing else.

What it finds. Steps that change nothing although there is a gradient, or only a part; frozen
weights that are no longer bit-identical; steps that fail; steps after which the loss of the same
batch is higher, or not finite; a loss that stays where it is although the weights change; updates
out of proportion to the weights.

Why it matters. Between a gradient and a changed weight there is code: filters by name, updates of
a copy, an optimizer of other parameters. A filter that keeps nothing stops training in silence.

How it is measured. Every parameter before and after real steps, the user's own where they are
given. An array that was not replaced is not compared; the others are, bit by bit where they should
be frozen. The first gradient times what the steps changed says by how much the loss has to move;
one that does not move at all has its value from something else. Then everything is put back.

When it is wrong. A warm-up that begins at a rate of zero changes nothing in its first step. Steps
on one batch with a high rate may raise its loss without harm. The value of a policy's surrogate
loss says nothing by its nature, so that nothing is said of it where the rewards are known.

What to do. Pass the whole tree of gradients to optimizer.update(model, gradients).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import Update

_SOUND = "every trainable parameter changed a little, every frozen one bit-identical"
_error, _warning = (partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning))


@dataclass(frozen=True)
class Limits:
    """When a step is out of proportion."""

    named: int = limit(3, unit="names", source="enough to see the pattern")
    warm_up: int = limit(
        3, unit="steps", source="a warm-up that begins at a rate of zero leaves it with its first"
    )
    large: float = limit(
        0.5,
        unit="change over norm, a step",
        source="sound steps at the runs' own rates: at most 0.16",
        false_alarms="0 of 254 sound steps on four bases (reports/probe.md)",
    )
    rise: float = limit(
        2.0,
        unit="times the loss before",
        source="sound steps: below 1, at a new adapter and at a trained one",
        false_alarms="0 of 254 sound steps",
    )
    rounding: float = limit(
        8.0, unit="units in the last place of the loss", source="less may be lost in rounding"
    )
    foreseen: float = limit(
        100.0,
        unit="times that",
        source="a loss whose value comes from elsewhere moves by rounding alone; sound ones by at "
        "least 134,000 units in five steps",
        false_alarms="0 of 128 sound steps with a new adapter",
    )
    half: float = limit(
        1e-3, unit="nats from ln 2", source="ln 2 is a pair's loss where both answers weigh alike"
    )


@check(
    codes={
        "failed": _error(
            "a training step fails",
            says="A training step fails ({failure}).",
            fix="call nn.value_and_grad(model, loss)(model, *batch), then optimizer.update",
        ),
        "nothing-changed": _error(
            "steps change nothing although there is a gradient",
            says="[{steps} {whose} changed none of {trainable:* trainable parameter}, although the "
            "loss has a gradient for {pushed} of them.|The learning rate is still 0 after "
            "{steps:* step}: they changed none of {trainable:* trainable parameter}.]",
            fix="pass the whole tree of gradients to optimizer.update: its keys are nested, so "
            "that a filter on the outermost ones keeps nothing",
        ),
        "some-unchanged": _error(
            "steps leave some trainable parameters as they were",
            says="{steps} {whose} left {still} of {pushed:* parameter} that have a gradient "
            "exactly as they were.",
            fix="compare the names that the optimizer is given with those of "
            "trainable_parameters()",
        ),
        "frozen-changed": _error(
            "frozen weights are changed",
            says="{frozen_changed:* frozen parameter is/frozen parameters are} not bit-identical "
            "after {steps:* step}, such as {where}.",
            fix="update only what nn.value_and_grad gives a gradient for",
        ),
        "not-finite": _error(
            "the loss is not finite after a step",
            says="The loss of the same batch is {last} after {steps:* step}; it was {first:.3f} "
            "before.",
            fix="lower the learning rate, clip the gradient, and look at the optimizer's settings",
        ),
        "loss-still": _error(
            "the loss stays where it is although the weights change",
            says="The loss of the same batch stays at {first:.4f} through {steps:* step}, although "
            "its first gradient, times what they changed, is {foreseen:.2g} nats[: it is ln 2 "
            "({ln_2:.4f}), as where policy and reference are the same].",
            expected="a loss that the steps move",
            fix="look for a reference or a target that is computed from the model that is trained, "
            "behind stop_gradient: give the loss one that stays as it is",
        ),
        "loss-rose": _warning(
            "the loss of the same batch is much higher after the steps",
            says="The loss of the same batch rose from {first:.3f} to {last:.3f} in "
            "{steps:* step}.",
            fix="lower the learning rate (it is multiplied by the LoRA scale)",
        ),
        "large": _warning(
            "a step changes weights out of proportion",
            says="{large} of {trainable:* trainable parameter} changed by more than {most:.0%} of "
            "their norm a step.",
            fix="lower the learning rate",
        ),
    },
    limits=Limits(),
)
def step_update(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at what real steps did."""
    update = step.update
    if update is None:
        raise Inconclusive("no step was made: the loss cannot be computed")
    measured: dict[str, Measurement] = {
        "steps": update.steps,
        "optimizer": update.optimizer,
        "learning_rate": update.learning_rate,
        "losses": tuple(update.losses),
        "changed": sum(one.change != 0 for one in update.parameters),
        "trainable": len(update.parameters),
    }
    if update.error is not None:
        figures = {**measured, "failure": update.error, "frames": update.frames}
        where = update.frames[-1] if update.frames else None
        yield Sign("failed", figures, where=where)
        return
    if update.frozen_changed:
        yield Sign(
            "frozen-changed",
            {**measured, "frozen_changed": len(update.frozen_changed)},
            where=", ".join(update.frozen_changed[: limits.named]),
        )
    yield from _unchanged(update, measured, limits)
    first, last = update.losses[0], update.losses[-1]
    measured = {**measured, "first": first, "last": last}
    if not math.isfinite(last) and math.isfinite(first):
        yield Sign("not-finite", measured)
    elif last > limits.rise * first > 0 and step.policy is None:
        yield Sign("loss-rose", measured)
    yield from _still(step, update, measured, limits)
    allowed = limits.large * update.steps
    large = [one.name for one in update.parameters if one.change > allowed * one.norm > 0]
    if large:
        yield Sign(
            "large",
            {**measured, "large": len(large), "most": limits.large},
            where=", ".join(large[: limits.named]),
        )


def _still(
    step: TrainingStep, update: Update, measured: dict[str, Measurement], limits: Limits
) -> Iterator[Sign]:
    first, foreseen = update.losses[0], abs(update.predicted)
    # A policy's surrogate has a gradient and no value of its own; a loss of labels has both.
    is_surrogate = step.policy is not None and not step.policy.labels
    if is_surrogate or not all(map(math.isfinite, update.losses)):
        return
    moved = max(abs(one - first) for one in update.losses)
    seen = limits.rounding * update.resolution * max(abs(first), 1e-6)
    if foreseen <= limits.foreseen * seen or moved > seen:
        return
    is_half = abs(first - math.log(2)) < limits.half
    # Without named rewards, what pushes some rows up and others down may be a policy's surrogate.
    may_be_policy = (
        step.alignment is not None
        and step.alignment.contrasts
        and step.pairs is None
        and step.policy is None
        and not is_half
    )
    figures = {
        "foreseen": update.predicted,
        "moved": moved,
        "ln_2": math.log(2) if is_half else None,
    }
    yield Sign(
        "loss-still",
        {**measured, **figures},
        severity=Severity.INFO if may_be_policy else None,
        fix="if this is a policy's surrogate loss, name its rewards" if may_be_policy else None,
    )


def _unchanged(update: Update, measured: dict[str, Measurement], limits: Limits) -> Iterator[Sign]:
    pushed = [one for one in update.parameters if one.gradient_norm]
    still = [one.name for one in pushed if one.change == 0]
    if not still:
        return
    if update.learning_rate == 0:
        if update.steps >= limits.warm_up and not measured["changed"]:
            yield Sign(
                "nothing-changed",
                measured,
                severity=Severity.WARNING,
                fix="give the optimizer a learning rate, or a schedule that leaves zero",
            )
        return
    names = ", ".join(still[: limits.named])
    figures = {
        "whose": "steps of the trainer's own" if update.own else "plain steps",
        "pushed": len(pushed),
        "still": len(still),
    }
    if not measured["changed"]:
        yield Sign("nothing-changed", {**measured, **figures}, where=names)
        return
    # A few parameters may be too large for so small a step to change their digits.
    are_few = len(still) <= 0.1 * len(update.parameters)
    yield Sign(
        "some-unchanged",
        {**measured, **figures},
        where=names,
        severity=Severity.WARNING if are_few else None,
    )
