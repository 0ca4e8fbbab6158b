"""Whether a loss of pairs or of a policy makes the better answers more likely.

What it finds. Pairs that are trained the wrong way round; chosen or rejected answers that are not
trained. A policy's loss that pushes answers whatever their rewards are; rewards that change
nothing; rewarded answers that are made less likely.

Why it matters. A sign, a swapped argument or a penalty that is differentiated along with the
rewards leaves a loss that looks like any other: it even falls when it is minimised. What it does to
the answers is what counts.

How it is measured. From the gradient of the logits of every forward pass: a target whose weight is
positive is made more likely, a negative one less. Chosen and rejected rows are told by the names of
the batch's arrays, or as the trainer names them. Where there are rewards, the gradient is taken
once more with every reward reversed, which has to reverse what happens to its answer: half of the
difference of the two pushes is what the rewards decide, half of their sum is what they do not.
Labels of yes and no are turned round.

When it is wrong. A margin loss has no gradient for pairs that are already far enough apart, and one
with a margin to hit pulls pairs back that are beyond it, so that less than half of the pairs the
wrong way round are a warning; a strong restraint may outweigh small rewards, rightly, once the
policy has moved away from its reference: probe the model that training begins with. Regression
weighted by an exponential of the rewards makes every answer more likely by its nature. Small pushes
are not held against a loss, for a bonus for entropy pushes without rewards. Rewards that are all
the same say nothing of a loss that compares them.

What to do. The loss of pairs is -log sigmoid(beta x ((chosen - reference chosen) - (rejected -
reference rejected))), the reference frozen or computed beforehand. A policy's advantage is a
number: put stop_gradient around it, the restraint included.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.measure.training_step.values import Preferences

#: From this share of a role's rows on they decide which way the loss goes.
MOST_ROWS = 0.5
#: Share of a role's rows that may be pulled back: none in sound losses before the first update.
SOME_ROWS = 0.1
#: Pushes below this share of the largest are of rewards about the average.
SMALL = 0.01
#: Share of the largest push that float32 changes by rounding.
ROUNDING = 1e-4
#: Share of the answers that may keep their direction: sound losses reverse every one.
KEPT = 0.25
#: What rewards do not decide, over what they do: some percent for a bonus for entropy, several
#: times for a penalty that is differentiated.
WITHOUT = 0.5

_error = partial(
    Symptom.error,
    expected="better answers made more likely, worse ones less, and neither without a reward",
)


@check(
    codes={
        "wrong-way": _error(
            "better answers are made less likely, or worse ones more",
            says="[{wrong} of {rows:* row} of {where} are made {how} likely.|The answer with the "
            "highest of the {name} ({highest:g}) is pushed by {its_push:+.2g}, the one with the "
            "lowest ({lowest:g}) by {push_of_lowest:+.2g}.]",
            fix="swap chosen and rejected in the loss, or change its sign. It must minimise minus "
            "the margin, or minus the advantage times the log probability. If only some rows are "
            "the wrong way round, the advantage may be centred on the batch's mean",
        ),
        "one-sided": _error(
            "chosen or rejected answers are not trained",
            says="No row of {where} has a gradient, while others have one.",
            fix="look for a stop_gradient, or a mask that leaves nothing of them",
        ),
        "unused": _error(
            "rewards change nothing",
            says="Reversing the {name} of {rows:* row} changes no gradient.",
            fix="multiply the log probabilities with the advantages",
        ),
        "not-reversed": _error(
            "answers are pushed the same way when their rewards are reversed",
            says="[{kept} of {rows:* answer} are pushed the same way when their {name} are "
            "reversed, {kept_up} of them up: rewards do not decide it.|A part of the push does not "
            "depend on the {name}. It is up to {without_rewards:.2g} times as large as the push "
            "from the {name}.]",
            fix="put stop_gradient around the advantage, including the penalty for leaving the "
            "reference",
        ),
    },
)
def step_preferences(step: TrainingStep) -> Iterator[Sign]:
    if step.alignment is None:
        raise Inconclusive(step.unread)
    if not step.is_contrast:
        raise DoesNotArise("the loss is none of pairs, and the batch has no rewards")
    if step.preferences is None:
        raise Inconclusive(
            "some rows are made more likely and others less, and nothing says which should be: "
            'name them, pairs=("chosen", "rejected") for pairs, rewards="rewards" for a policy'
        )
    if step.preferences.reversed is None:
        yield from _pairs(step.preferences)
    else:
        yield from _rewards(step.preferences, step.preferences.reversed)


def _pairs(pairs: Preferences) -> Iterator[Sign]:
    if not pairs.rewards.any():
        raise Inconclusive(f"no row that is trained is one of {' or '.join(pairs.names)} alone")
    untrained = []
    for role, name, how in zip((1, -1), pairs.names, ("less", "more"), strict=True):
        towards = pairs.pushes[pairs.rewards == role] * role
        rows, wrong = len(towards), int((towards < 0).sum())
        if wrong > SOME_ROWS * rows:
            severity = None if wrong >= MOST_ROWS * rows else Severity.WARNING
            counts = {"rows": rows, "wrong": wrong}
            yield Sign("wrong-way", {**counts, "how": how}, where=name, severity=severity)
        untrained += [] if towards.any() else [name]
    if len(untrained) == 1:
        yield Sign("one-sided", {}, where=untrained[0])


def _rewards(policy: Preferences, reversed_pushes: NDArray[np.float64]) -> Iterator[Sign]:
    name, pushes, rewards = policy.names[0], policy.pushes, policy.rewards
    if not np.isfinite(reversed_pushes).all():
        raise Inconclusive("the loss is another one when its rewards are reversed")
    largest = float(np.abs([pushes, reversed_pushes]).max(initial=0.0))
    if largest == 0:
        raise Inconclusive(f"this batch's {name} push no answer, as they are or reversed")
    own = (pushes - reversed_pushes) / 2
    if float(np.abs(own).max()) <= ROUNDING * largest:
        yield Sign("unused", {"name": name, "rows": len(own)})
        return
    counts = np.abs(pushes) > SMALL * largest
    keeps = counts & (pushes * reversed_pushes > 0)
    are_most = keeps.sum() > KEPT * counts.sum()
    without = float(np.abs(pushes + reversed_pushes).max() / 2 / np.abs(own).max())
    # Labels of yes and no may weigh differently.
    if are_most or (without > WITHOUT and not policy.labels):
        measured: dict[str, Measurement] = {"name": name, "rows": int(counts.sum())}
        measured["kept"] = int(keeps.sum()) if are_most else None
        measured["kept_up"] = int((keeps & (pushes > 0)).sum())
        measured["without_rewards"] = without
        yield Sign("not-reversed", measured, severity=None if are_most else Severity.WARNING)
    # Rewards that are all the same say nothing of a loss that compares them.
    if rewards.shape == own.shape and not policy.all_same and np.cov(rewards, own)[0, 1] < 0:
        best, worst = int(rewards.argmax()), int(rewards.argmin())
        of_best = {"highest": float(rewards[best]), "its_push": float(own[best])}
        of_worst = {"lowest": float(rewards[worst]), "push_of_lowest": float(own[worst])}
        yield Sign("wrong-way", {"name": name, **of_best, **of_worst})
