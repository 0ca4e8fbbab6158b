"""Whether a loss of pairs or of a policy makes the better answers more likely.

What it finds. Pairs that are trained the wrong way round; chosen or rejected answers that are not
trained; pairs of the same answer twice. A policy's loss that pushes answers the same way whatever
their rewards are; rewards that change nothing; rewarded answers that are made less likely; a loss
that is not finite where all rewards are the same.

Why it matters. A sign, a swapped argument or a penalty that is differentiated along with the
rewards leaves a loss that looks like any other: it even falls when it is minimised. What it does to
the answers is what counts.

How it is measured. From the gradient of the logits of every forward pass: a target whose weight is
positive is made more likely, a negative one less. Chosen and rejected rows are told by the names of
the batch's arrays, or as the trainer names them. Where there are rewards, the gradient is taken
three times: as they are, with every reward reversed, and with rewards of zero. A reward that is
reversed has to reverse what happens to its answer; no reward has to leave it as it is, while the
policy is still its reference. Labels of yes and no are turned round.

When it is wrong. A margin loss has no gradient for pairs that are already far enough apart, and one
with a margin to hit pulls pairs back that are beyond it; a strong restraint may outweigh small
rewards, rightly, once the policy has moved away from its reference: probe the model that training
begins with. Regression weighted by an exponential of the rewards makes every answer more likely by
its nature. Small pushes are not held against a loss, for a bonus for entropy pushes without
rewards. Where all rewards of a batch are the same, nothing is said.

What to do. The loss of pairs is -log sigmoid(beta x ((chosen - reference chosen) - (rejected -
reference rejected))), the reference frozen or computed beforehand. A policy's advantage is a
number: put stop_gradient around it, the restraint included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.values import Pairs, Policy

_SOUND = "better answers made more likely, worse ones less, and neither without a reward"
_error, _warning, _info = (
    partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning, Symptom.info)
)
_STOP = "put stop_gradient around the advantage, the penalty for leaving the reference included"
_PARTLY = (
    "look at what else decides the sign of a pair's term: an advantage that is centred on the "
    "batch's mean is negative for half of the pairs"
)


@dataclass(frozen=True)
class Limits:
    """When a push is one, and how many rows decide."""

    rows: float = limit(0.5, unit="share of a role's rows", source="more than half decides")
    some: float = limit(
        0.1,
        unit="share of a role's rows",
        source="sound losses: 0 before the first update; some pull back pairs far apart later on",
    )
    small: float = limit(
        0.01, unit="share of the largest push", source="rows whose reward is about the average"
    )
    unused: float = limit(
        1e-4, unit="share of the largest push", source="what rounding changes, in float32"
    )
    kept: float = limit(
        0.25, unit="share of the rows", source="sound losses reverse every row, these half or all"
    )
    without: float = limit(
        0.5,
        unit="times the push of the rewards",
        source="a bonus for entropy is some percent; a differentiated penalty several times",
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
        "identical-pairs": _warning(
            "pairs have the same answer twice",
            says="{identical} of {pairs:* pair} have the same answer twice.",
            fix="leave out pairs whose answers are the same",
        ),
        "unnamed": _info(
            "some rows are made more likely and others less, and nothing says which should be",
            says="{up:* row is/rows are} made more likely and {down} less; which they should be is "
            "unknown.",
            fix='name them: pairs=("chosen", "rejected") for pairs, rewards="rewards" for a policy',
        ),
        "unused": _error(
            "rewards change nothing",
            says="Reversing the {name} of {rows:* row} changes no gradient.",
            fix="multiply the log probabilities with the advantages",
        ),
        "not-reversed": _error(
            "answers are pushed the same way when their rewards are reversed",
            says="{kept} of {rows:* answer} are pushed the same way when their {name} are "
            "reversed, {kept_up} of them up: rewards do not decide it.",
            fix=_STOP,
        ),
        "wrong-way": _error(
            "rewarded answers are made less likely than others",
            says="The answer with the highest of the {name} ({highest:g}) is pushed by "
            "{its_push:+.2g}, the one with the lowest ({lowest:g}) by {push_of_lowest:+.2g}.",
            fix="minimise minus the advantage times the log probability",
        ),
        "pushed-without": _warning(
            "answers are pushed without any reward",
            says="With all {name} at zero answers are still pushed, by up to "
            "{without_rewards:.2g} times as much as the {name} push them.",
            fix=_STOP,
        ),
        "not-finite": _warning(
            "the gradient is not finite where all rewards are the same",
            says="With all {name} at zero the gradient is not finite.",
            fix="add a small number to the rewards' standard deviation before dividing by it",
        ),
    },
    limits=Limits(),
)
def step_preferences(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at which answers are made more likely, and what reversing the rewards does to it."""
    alignment = step.alignment
    if alignment is None:
        raise Inconclusive(step.unread)
    if not step.is_contrast:
        raise DoesNotArise("the loss is none of pairs, and the batch has no rewards")
    pushes = alignment.pushes
    if step.pairs is not None:
        yield from _pairs(step, step.pairs, pushes, limits)
    if step.policy is not None:
        yield from _rewards(step.policy, limits)
    if step.pairs is None and step.policy is None:
        yield Sign("unnamed", {"up": int((pushes > 0).sum()), "down": int((pushes < 0).sum())})


def _pairs(
    step: TrainingStep, pairs: Pairs, pushes: NDArray[np.float64], limits: Limits
) -> Iterator[Sign]:
    if pairs.identical:
        yield Sign("identical-pairs", {"identical": pairs.identical, "pairs": pairs.pairs})
    if not pairs.roles.any():
        raise Inconclusive(f"no row that is trained is one of {' or '.join(pairs.names)} alone")
    # Where the adapter adds nothing yet, no pair can be too far apart.
    is_new = step.forward is not None and step.forward.loss == step.forward.without_adapter
    untrained = []
    for role, name, how in zip((1, -1), pairs.names, ("less", "more"), strict=True):
        towards = pushes[pairs.roles == role] * role
        rows, wrong = len(towards), int((towards < 0).sum())
        is_most = wrong > limits.rows * rows
        if wrong > limits.some * rows:
            yield Sign(
                "reversed",
                {"rows": rows, "wrong": wrong, "right": int((towards > 0).sum()), "how": how},
                where=name,
                severity=None if is_most or is_new else Severity.WARNING,
                fix=None if is_most else _PARTLY,
            )
        untrained += [] if towards.any() else [name]
    if len(untrained) == 1:
        yield Sign("one-sided", {}, where=untrained[0])


def _rewards(policy: Policy, limits: Limits) -> Iterator[Sign]:
    if not np.isfinite(policy.reversed).all():
        raise Inconclusive("the loss is another one when its rewards are reversed")
    zeroed = policy.zeroed
    if zeroed is not None and not np.isfinite(zeroed).all():
        yield Sign("not-finite", {"name": policy.name, "rows": len(policy.pushes)})
        zeroed = None
    largest = float(np.abs([policy.pushes, policy.reversed]).max(initial=0.0))
    if largest == 0:
        raise Inconclusive(f"this batch's {policy.name} push no answer, as they are or reversed")
    own = (policy.pushes - policy.reversed) / 2
    if float(np.abs(own).max()) <= limits.unused * largest:
        yield Sign("unused", {"name": policy.name, "rows": len(own), "largest_push": largest})
        return
    counts = np.abs(policy.pushes) > limits.small * largest
    keeps = counts & (policy.pushes * policy.reversed > 0)
    share = 0.0 if zeroed is None else float(np.abs(zeroed).max() / np.abs(own).max())
    measured: dict[str, Measurement] = {
        "name": policy.name,
        "rows": int(counts.sum()),
        "kept": int(keeps.sum()),
        "kept_up": int((keeps & (policy.pushes > 0)).sum()),
        "pushes": tuple(float(f"{push:.4g}") for push in policy.pushes[:8]),
        "reversed": tuple(float(f"{push:.4g}") for push in policy.reversed[:8]),
        "without_rewards": share,
    }
    if keeps.sum() > limits.kept * counts.sum():
        yield Sign("not-reversed", measured)
    elif share > limits.without:
        yield Sign("pushed-without", measured)
    rewards = policy.rewards
    # Rewards that are all the same say nothing of a loss that compares them.
    if rewards.shape == own.shape and not policy.same and np.cov(rewards, own)[0, 1] < 0:
        best, worst = int(rewards.argmax()), int(rewards.argmin())
        yield Sign(
            "wrong-way",
            {
                "name": policy.name,
                "highest": float(rewards[best]),
                "its_push": float(own[best]),
                "lowest": float(rewards[worst]),
                "push_of_lowest": float(own[worst]),
            },
        )
