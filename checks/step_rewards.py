"""Whether a policy's loss follows its rewards.

What it finds. A loss that pushes answers the same way whatever their rewards are; rewards that
change nothing; rewarded answers that are made less likely; a loss that is not finite where all
rewards are the same.

Why it matters. A term that should only restrain the policy, differentiated along with the rewards,
can outweigh them: then answers that were punished are reinforced, and the curve of the loss does
not tell.

How it is measured. From the gradient of the logits, three times: with the rewards as they are, with
every reward reversed, and with rewards of zero. A reward that is reversed has to reverse what
happens to its answer; no reward has to leave it as it is, while the policy is still its reference.
Labels of yes and no are turned round. Nothing else of the batch is changed.

When it is wrong. Once the policy has moved away from its reference, a strong restraint may outweigh
small rewards, rightly. Regression weighted by an exponential of the rewards makes every answer more
likely by its nature. A bonus for entropy pushes without rewards. Small pushes are therefore not
held against a loss. Where all rewards of a batch are the same, nothing is said.

What to do. The advantage is a number: put stop_gradient around it, the restraint included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.phases import Policy

_SOUND = "rewarded answers made more likely, punished ones less, and neither without a reward"
_error, _warning = (partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning))
_STOP = "put stop_gradient around the advantage, the penalty for leaving the reference included"


@dataclass(frozen=True)
class Limits:
    """When a push is one."""

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
def step_rewards(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at what reversing the rewards, and taking them away, does to the gradient."""
    policy = step.policy
    if policy is None:
        if step.alignment is None and step.forward is None:
            raise Inconclusive(f"the loss cannot be computed: {step.failure}")
        raise DoesNotArise("the batch has no rewards")
    if not np.isfinite(policy.reversed).all():
        raise Inconclusive("the loss is another one when its rewards are reversed")
    if policy.zeroed is not None and not np.isfinite(policy.zeroed).all():
        yield Sign("not-finite", {"name": policy.name, "rows": len(policy.pushes)})
    largest = float(np.abs([policy.pushes, policy.reversed]).max(initial=0.0))
    if largest == 0:
        raise Inconclusive(f"this batch's {policy.name} push no answer, as they are or reversed")
    own = (policy.pushes - policy.reversed) / 2
    if float(np.abs(own).max()) <= limits.unused * largest:
        yield Sign("unused", {"name": policy.name, "rows": len(own), "largest_push": largest})
        return
    yield from _reversal(policy, own, largest, limits)
    yield from _way(policy, own)


def _reversal(
    policy: Policy, own: NDArray[np.float64], largest: float, limits: Limits
) -> Iterator[Sign]:
    counts = np.abs(policy.pushes) > limits.small * largest
    keeps = counts & (policy.pushes * policy.reversed > 0)
    measured: dict[str, Measurement] = {
        "name": policy.name,
        "rows": int(counts.sum()),
        "kept": int(keeps.sum()),
        "kept_up": int((keeps & (policy.pushes > 0)).sum()),
        "pushes": tuple(float(f"{one:.4g}") for one in policy.pushes[:8]),
        "reversed": tuple(float(f"{one:.4g}") for one in policy.reversed[:8]),
    }
    share = 0.0
    if policy.zeroed is not None and np.isfinite(policy.zeroed).all():
        share = float(np.abs(policy.zeroed).max() / np.abs(own).max())
        measured["without_rewards"] = share
    if keeps.sum() > limits.kept * counts.sum():
        yield Sign("not-reversed", measured)
    elif share > limits.without:
        yield Sign("pushed-without", measured)


def _way(policy: Policy, own: NDArray[np.float64]) -> Iterator[Sign]:
    """Whether what the rewards do goes with them."""
    rewards = policy.rewards
    if rewards.shape != own.shape or policy.same:
        # Rewards that are all the same say nothing of a loss that compares them.
        return
    together = float(np.mean((rewards - rewards.mean()) * (own - own.mean())))
    if together < 0:
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
