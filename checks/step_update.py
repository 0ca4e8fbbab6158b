"""Whether a training step has a sound loss, and changes what it should and nothing else.

What it finds. A loss that cannot be computed, is no finite mean or is above a uniform guess before
any update; gradients that are missing, zero, not finite or enormous; and steps that fail, change
nothing, change frozen weights, leave some of the rows out, or leave the loss higher, not finite, or
exactly where it was.

Why it matters. A loss that is not finite before the first update stays so, and a loss above ln of
the vocabulary shows that targets, weights or tokenizer are wrong. A parameter without a gradient
never changes, however long the run is. And the code between a gradient and a changed weight can be
wrong: filters by name, updates of a copy, an optimizer of other parameters. A filter that keeps
nothing stops training without an error.

How it is measured. The loss of the given batch with dropout off, and its gradient with respect to
every parameter that MLX calls trainable, before the steps and after them: at B = 0, where an
adapter begins, A has none at first. Then every parameter before and after real steps, the user's
own where they are given. An array that was not replaced is not compared; the others are, bit by bit
where they should be frozen. The first gradient times what the steps changed says by how much the
loss has to move; one that does not move at all has its value from something else. What a step of
the user's own gives the optimizer is taken apart into the gradients of the rows alone, with dropout
off; where several calls make one update, each is given one row. Then everything is put back.

When it is wrong. Experts that no token of this batch was sent to, and embeddings of tokens it does
not have, get no gradient. A warm-up that begins at a rate of zero changes nothing in its first
step. Steps on one batch with a high rate may raise its loss without harm. The value of a policy's
surrogate loss says nothing by its nature: it is not looked at where the rewards are known, and
losses of pairs and of policies are not held against the guess. A loss may be a sum, or weigh
tokens. A new model, or a small one that is sure of other words, starts above the uniform guess, up
to 1.14 nats in healthy runs: nothing is said below 1.5.

What to do. Print the inputs and targets of one row side by side. Look for a stop_gradient or a
layer whose output is not used; pass the whole tree of gradients to optimizer.update(model,
gradients).
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial

from mlxdoctor.check import check
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.values import Forward, Update

_SOUND = "every trainable parameter changed a little, every frozen one bit-identical"
_GRADIENT = "a finite gradient other than zero for every trainable parameter"
_error = partial(Symptom.error, expected=_SOUND)
_warning = partial(Symptom.warning, expected=_SOUND)

#: Least loss that is a sum, in uniform guesses: no mean over tokens is so high.
_SUM = 3.0
#: Nats above the uniform guess for an error: sound runs of small bases start up to 1.03 above it,
#: 254 sound steps up to 1.14 (reports/probe.md).
_ABOVE_UNIFORM = 1.5
#: Steps after which a rate of zero is not a warm-up: a warm-up leaves zero at the second step.
_WARM_UP = 3
#: Largest share of unchanged parameters for a warning: a small step may change no digit of a large
#: parameter.
_FEW = 0.1
#: Units in the last place of the loss by which rounding may move it.
_ROUNDING = 8.0
#: Least expected move of the loss, in moves by rounding: sound losses move by at least 134,000
#: units in five steps (0 false alarms in 128 sound steps with a new adapter).
_EXPECTED_MOVE = 100.0
#: Part of a row in an update, over its part in the loss, below which it is not there: 0 where it
#: was forgotten, 0.19 where it is averaged with a row of a 23rd of its tokens.
_LOST = 0.01
#: Parameters that a sentence names.
SHOWN = 2
#: Nats from ln 2, the loss of a pair whose two answers are equally likely.
_HALF = 1e-3
#: Least L2 norm of an exploding gradient; at most 36 in sound steps (0 of 254 on four bases above,
#: reports/probe.md).
_EXPLODING = 1e3
#: Least ratio of the loss after the steps to that before; below 1 in the same sound steps.
_RISE = 2.0


@check(
    codes={
        "no-loss": Symptom.error(
            "the loss cannot be computed",
            says="The loss cannot be computed on this batch[ ({failure})].",
            expected="a finite scalar",
            fix="call the loss by hand with one batch",
        ),
        "starts-not-finite": Symptom.error(
            "the loss or the logits are not finite before any update",
            says="The {what} of this batch is not finite before any update (loss {loss:g}, "
            "[{dtype}|no] logits).",
            expected="a finite loss",
            fix="guard a division by the number of supervised tokens, and look for rows with none",
        ),
        "starts-above-uniform": Symptom.error(
            "the loss is above that of a uniform guess before any update",
            says="The loss is {loss:.2f} before any update[, {beyond:.2f} nats above|: {times:.1f} "
            "times] a uniform guess over the vocabulary ({uniform:.2f})[, as where losses "
            "are added up{is_sum}].",
            expected="below {uniform:.2f}",
            fix="[divide by the number of supervised tokens{is_sum}|print inputs and targets of a "
            "row side by side: the targets are the next tokens]",
        ),
        "failed": _error(
            "the gradient cannot be taken, or a training step fails",
            says="A training step fails ({failure}).",
            fix="call nn.value_and_grad(model, loss)(model, *batch), then optimizer.update",
        ),
        "no-gradient": _error(
            "trainable parameters get no gradient",
            says="{zero} of {expected:* trainable parameter} get a gradient of exactly zero, such "
            "as {examples}.",
            expected=_GRADIENT,
            fix="look for stop_gradient, a layer whose output the loss does not see, or a loss of "
            "another model than the one that is differentiated",
        ),
        "gradient-not-finite": _error(
            "gradients are not finite",
            says="The gradients of {broken} of {parameters:* trainable parameter} are not finite.",
            expected=_GRADIENT,
            fix="look for a division by zero, a square root at zero, or an overflow in float16",
        ),
        "exploding": _warning(
            "the gradient is enormous",
            says="The gradient's norm is {gradient_norm:.3g}: a first step of that size ruins a "
            "model without clipping.",
            fix="clip the gradient's norm to 1, and use the mean over tokens, not the sum",
        ),
        "unchanged": _error(
            "steps leave trainable parameters as they were although they have a gradient",
            says="{steps} {whose} left {still} of {pushed:* parameter} that have a gradient "
            "exactly as they were, such as {examples}[: the learning rate is still "
            "{learning_rate:g}|: in 16 bits a small step is rounded away{is_half}].",
            fix="[keep the weights that are trained in float32{is_half}|pass the whole tree of "
            "gradients to optimizer.update: its keys are nested, so that a filter on the outermost "
            "ones keeps nothing]",
        ),
        "frozen-changed": _error(
            "frozen weights are changed",
            says="{frozen_changed:* frozen parameter is/frozen parameters are} not bit-identical "
            "after {steps:* step}, such as {where}.",
            fix="update only what nn.value_and_grad gives a gradient for",
        ),
        "parts-lost": _error(
            "an update is not made from all rows, or all calls, of which it should be",
            says="[Of {calls} calls of the trainer's own step that make one update|Of {rows:* row} "
            "that the trainer's own step is given], {lost:* leaves/leave} nothing in the gradient "
            "that the optimizer takes.",
            expected="the sum of the gradients of all parts",
            fix="add each part's gradient to the sum, and begin a new sum after the update alone",
        ),
        "loss-still": _error(
            "the loss stays where it is although the weights change",
            says="The loss of the same batch stays at {first:.4f} through {steps:* step}, although "
            "its first gradient predicts a change of {foreseen:.2g} nats[: it is ln 2 "
            "({ln_2:.4f}), as where policy and reference are the same].",
            expected="a loss that the steps move",
            fix="look for a reference or a target that is computed, behind stop_gradient, from the "
            "model being trained. Give the loss a reference that does not change",
        ),
        "loss-rose": _warning(
            "the loss of the same batch is much higher after the steps, or not finite",
            says="The loss of the same batch went from {first:.3f} to {last:.3f} in "
            "{steps:* step}.",
            fix="lower the learning rate (it is multiplied by the LoRA scale)",
        ),
    },
)
def step_update(step: TrainingStep) -> Iterator[Sign | Unsought]:
    update = step.update
    if step.forward is None or update is None:
        yield Sign("no-loss", {"failure": step.failure})
        return
    yield from _start(step, step.forward)
    first, last = update.losses[0], update.losses[-1]
    measured: dict[str, Measurement] = {
        "steps": update.steps,
        "optimizer": update.optimizer,
        "learning_rate": update.learning_rate,
        "losses": tuple(update.losses),
        "changed": sum(parameter.change != 0 for parameter in update.parameters),
        "trainable": len(update.parameters),
        "first": first,
        "last": last,
    }
    if update.error is not None:
        yield Sign("failed", {**measured, "failure": update.error})
        return
    if update.frozen_changed:
        figures = {**measured, "frozen_changed": len(update.frozen_changed)}
        yield Sign("frozen-changed", figures, where=some_of(update.frozen_changed))
    yield from _gradients(update)
    yield from _unchanged(update, measured)
    yield from _parts_lost(update)
    if not math.isfinite(last) and math.isfinite(first):
        yield Sign("loss-rose", measured, severity=Severity.ERROR)
    elif last > _RISE * first > 0 and step.policy is None:
        yield Sign("loss-rose", measured)
    yield from _still(step, step.forward, update, measured)


def _start(step: TrainingStep, forward: Forward) -> Iterator[Sign | Unsought]:
    """The loss before any update."""
    loss, uniform = forward.loss, forward.uniform
    measured: dict[str, Measurement] = {"loss": loss, "uniform": uniform, "dtype": forward.dtype}
    if not forward.finite_logits:
        fix = "check the base model's own output, and its weights"
        yield Sign("starts-not-finite", {**measured, "what": "output"}, fix=fix)
    elif not math.isfinite(loss):
        yield Sign("starts-not-finite", {**measured, "what": "loss"})
    elif step.is_contrast:
        yield Unsought(("starts-above-uniform",), "a loss of pairs or of a policy is no mean")
    elif uniform is not None and loss > uniform + _ABOVE_UNIFORM:
        is_sum, beyond = loss > _SUM * uniform, loss - uniform
        measured |= {"times": loss / uniform, "is_sum": ""} if is_sum else {"beyond": beyond}
        yield Sign("starts-above-uniform", measured)


def _gradients(update: Update) -> Iterator[Sign]:
    norms = {
        parameter.name: parameter.gradient_norm
        for parameter in update.parameters
        if parameter.gradient_norm is not None
    }
    total = math.hypot(*norms.values())
    if broken := [name for name, norm in norms.items() if not math.isfinite(norm)]:
        figures = {"broken": len(broken), "parameters": len(norms)}
        yield Sign("gradient-not-finite", figures, where=some_of(broken))
        return
    # Before a factor or a projection that begins at zero nothing has one, until that has moved.
    zero = [each.name for each in update.parameters if each.gradient_norm == 0.0]
    if any(each.change for each in update.parameters):
        later = {each.name: each.later_norm for each in update.parameters}
        zero = [name for name in zero if not later[name]]
    elif len(zero) < len(norms):
        zero = []
    if zero:
        # A batch may not reach experts and embeddings.
        are_rare = all(any(word in name for word in ("expert", "switch", "embed")) for name in zero)
        severity = Severity.WARNING if are_rare and len(zero) < len(norms) else None
        counts = {"zero": len(zero), "expected": len(norms)}
        named: dict[str, Measurement] = {**counts, "examples": some_of(zero, SHOWN)}
        yield Sign("no-gradient", named, where=some_of(zero), severity=severity)
    if total > _EXPLODING:
        largest = sorted(norms, key=lambda name: -norms[name])
        # A step of the trainer's own clips, if the loss falls by it.
        is_clipped = update.own and update.losses[-1] < update.losses[0]
        severity = Severity.INFO if is_clipped else None
        yield Sign("exploding", {"gradient_norm": total}, some_of(largest), severity=severity)


def _unchanged(update: Update, measured: Mapping[str, Measurement]) -> Iterator[Sign]:
    with_gradient = [parameter for parameter in update.parameters if parameter.gradient_norm]
    still = [parameter for parameter in with_gradient if parameter.change == 0]
    unchanged = [parameter.name for parameter in still]
    is_still, has_rate = not measured["changed"], update.learning_rate != 0
    # A warm-up that begins at zero changes nothing in its first steps.
    if not unchanged or not (has_rate or (is_still and update.steps >= _WARM_UP)):
        return
    are_few = not is_still and len(unchanged) <= _FEW * len(update.parameters)
    yield Sign(
        "unchanged",
        {
            **measured,
            "whose": "steps of the trainer's own" if update.own else "plain steps",
            "pushed": len(with_gradient),
            "still": len(unchanged),
            "examples": some_of(unchanged, SHOWN),
            "is_half": "" if has_rate and all(each.is_half for each in still) else None,
            "learning_rate": None if has_rate else update.learning_rate,
        },
        where=some_of(unchanged),
        severity=Severity.WARNING if are_few or not has_rate else None,
        fix=None if has_rate else "give the optimizer a learning rate that leaves zero",
    )


def _parts_lost(update: Update) -> Iterator[Sign | Unsought]:
    """Rows, or calls, that leave nothing in an update."""
    if not update.shares:
        yield Unsought(("parts-lost",), update.unshared)
        return
    lost = [place for place, share in enumerate(update.shares, 1) if share < _LOST]
    if lost:
        several = update.calls > 1
        counts = {"calls": update.calls if several else None, "rows": len(update.shares)}
        measured: dict[str, Measurement] = {**counts, "lost": len(lost)}
        measured |= {"shares": tuple(round(share, 3) for share in update.shares)}
        named = some_of([f"{'call' if several else 'row'} {place}" for place in lost])
        yield Sign("parts-lost", measured, where=named)


def _still(
    step: TrainingStep, forward: Forward, update: Update, measured: Mapping[str, Measurement]
) -> Iterator[Sign]:
    first = update.losses[0]
    # The surrogate loss of a policy has a gradient, but its value means nothing.
    is_surrogate = step.policy is not None and not step.policy.labels
    if is_surrogate or not all(map(math.isfinite, update.losses)):
        return
    moved = max(abs(loss - first) for loss in update.losses)
    rounding = _ROUNDING * forward.resolution * max(abs(first), 1e-6)
    if abs(update.predicted) <= _EXPECTED_MOVE * rounding or moved > rounding:
        return
    is_half = abs(first - math.log(2)) < _HALF
    # Without named rewards, a loss that makes some rows less likely may be a policy's surrogate.
    may_be_policy = step.is_contrast and step.preferences is None and not is_half
    figures = {"foreseen": update.predicted, "ln_2": math.log(2) if is_half else None}
    yield Sign(
        "loss-still",
        {**measured, **figures},
        severity=Severity.INFO if may_be_policy else None,
        fix="if this is a policy's surrogate loss, name its rewards" if may_be_policy else None,
    )
