"""Whether a loss of pairs makes chosen answers more likely and rejected ones less.

What it finds. Pairs that are trained the wrong way round; chosen or rejected answers that are not
trained; a reference model that is trained along with the policy; pairs of the same answer twice.

Why it matters. A sign, a swapped argument or a reference that moves leaves a loss that looks like
any other: it even falls when it is minimised. What it does to the answers is what counts.

How it is measured. From the gradient of the logits of every forward pass: a target whose weight is
positive is made more likely, a negative one less. What a pair's answers do to the prompt that they
have in common cancels, and is not counted. Chosen and rejected rows are told by the names of the
batch's arrays, or as the trainer names them. A reference that the loss asks the model itself for is
asked again after the steps.

When it is wrong. A margin loss has no gradient for pairs that are already far enough apart, and one
with a margin to hit pulls pairs back that are beyond it: probe the model that training begins with.

What to do. The loss is -log sigmoid(beta x ((chosen - reference chosen) - (rejected - reference
rejected))), the reference frozen or computed beforehand.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import Alignment, Pairs, Reference

_SOUND = "chosen answers made more likely, rejected ones less, against a reference that stays"
_error, _warning, _info = (
    partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning, Symptom.info)
)
_PARTLY = (
    "look at what else decides the sign of a pair's term: an advantage that is centred on the "
    "batch's mean is negative for half of the pairs"
)


@dataclass(frozen=True)
class Limits:
    """When rows are pushed, and a reference moves."""

    rows: float = limit(0.5, unit="share of a role's rows", source="more than half decides")
    some: float = limit(
        0.1,
        unit="share of a role's rows",
        source="sound losses: 0 before the first update; some pull back pairs far apart later on",
    )
    moved: float = limit(
        0.01,
        unit="share of the policy's own change",
        source="a reference that stays moves by 0, one that is the policy by as much as it does",
    )
    half: float = limit(
        1e-4, unit="nats from ln 2", source="ln 2 is the loss where policy and reference agree"
    )


@check(
    codes={
        "reversed": _error(
            "chosen answers are made less likely, or rejected ones more",
            says="{wrong} of {rows:* row} of {where} are made {how} likely.",
            fix="swap chosen and rejected in the loss, or its sign",
        ),
        "one-sided": _error(
            "chosen or rejected answers are not trained",
            says="No row of {where} has a gradient, while others have one.",
            fix="look for a stop_gradient, or a mask that leaves nothing of them",
        ),
        "reference-moves": _error(
            "the reference is the model that is trained",
            says="The reference's log probabilities move by up to {reference_moved:.2g} nats in "
            "the steps, where the policy's move by {policy_moved:.2g}: both are the model that is "
            "trained.",
            fix="compute the reference's log probabilities before training, or with the adapter "
            "switched off",
        ),
        "identical-pairs": _warning(
            "pairs have the same answer twice",
            says="{identical} of {pairs:* pair} have the same answer twice.",
            fix="leave out pairs whose answers are the same",
        ),
        "policy-is-reference": _info(
            "policy and reference agree on every pair, as before the first update",
            says="Before the steps policy and reference agree on every pair (loss {loss:.4f}).",
            fix="nothing: the loss begins at ln 2 and has to fall from there",
        ),
        "unnamed": _info(
            "some rows are made more likely and others less, and nothing says which should be",
            says="{up:* row is/rows are} made more likely and {down} less; which they should be is "
            "unknown.",
            fix='name them: pairs=("chosen", "rejected") for pairs, rewards="rewards" for a policy',
        ),
    },
    limits=Limits(),
)
def step_pairs(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at which answers are made more likely."""
    alignment, pairs = step.alignment, step.pairs
    if alignment is None:
        raise Inconclusive(step.unseen or f"the loss cannot be computed: {step.failure}")
    if pairs is None:
        if step.policy is not None or not alignment.contrasts:
            raise DoesNotArise("the loss is none of pairs")
        up, down = int((alignment.pushes > 0).sum()), int((alignment.pushes < 0).sum())
        yield Sign("unnamed", {"up": up, "down": down})
    else:
        if not pairs.roles.any():
            raise Inconclusive(f"no row that is trained is one of {' or '.join(pairs.names)} alone")
        yield from _directions(alignment, pairs, _is_new(step), limits)
        if pairs.identical:
            measured = {"identical": pairs.identical, "pairs": pairs.pairs}
            yield Sign("identical-pairs", measured)
    yield from _reference(step, step.reference, limits)


def _is_new(step: TrainingStep) -> bool:
    """Whether the adapter adds nothing yet, so that no pair can be too far apart."""
    forward = step.forward
    return forward is not None and forward.loss == forward.without_adapter


def _directions(alignment: Alignment, pairs: Pairs, is_new: bool, limits: Limits) -> Iterator[Sign]:
    pushes, roles = alignment.pushes, pairs.roles
    counts = {
        role: {
            "rows": int((roles == role).sum()),
            "right": int(((roles == role) & (pushes * role > 0)).sum()),
            "wrong": int(((roles == role) & (pushes * role < 0)).sum()),
        }
        for role in (1, -1)
    }
    measured: dict[str, Measurement] = {
        f"{name}_{what}": count
        for role, name in ((1, "chosen"), (-1, "rejected"))
        for what, count in counts[role].items()
    }
    for role, name, how in ((1, pairs.names[0], "less"), (-1, pairs.names[1], "more")):
        rows, wrong = counts[role]["rows"], counts[role]["wrong"]
        is_most = wrong > limits.rows * rows
        if wrong > limits.some * rows:
            yield Sign(
                "reversed",
                {**measured, "rows": rows, "wrong": wrong, "how": how},
                where=name,
                severity=None if is_most or is_new else Severity.WARNING,
                fix=None if is_most else _PARTLY,
            )
    still = [
        name
        for role, name in ((1, pairs.names[0]), (-1, pairs.names[1]))
        if role in pairs.unpushed or not counts[role]["right"] + counts[role]["wrong"]
    ]
    if len(still) == 1:
        yield Sign("one-sided", measured, where=still[0])


def _reference(step: TrainingStep, reference: Reference | None, limits: Limits) -> Iterator[Sign]:
    moves = False
    if reference is not None and step.policy is None and reference.moved is not None:
        own = reference.policy_moved or 0.0
        moves = reference.moved > limits.moved * own > 0
        if moves:
            yield Sign(
                "reference-moves",
                {"reference_moved": reference.moved, "policy_moved": own},
                severity=None if step.pairs is not None else Severity.WARNING,
            )
    forward = step.forward
    is_half = forward is not None and abs(forward.loss - math.log(2)) < limits.half
    agrees = is_half or (reference is not None and reference.equal)
    # A loss that stays at ln 2 is another finding.
    falls = step.update is None or len(set(step.update.losses)) > 1
    if agrees and falls and not moves and forward is not None:
        yield Sign("policy-is-reference", {"loss": forward.loss, "ln_2": math.log(2)})
