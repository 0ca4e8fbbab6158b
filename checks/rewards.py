"""Whether rewards told answers apart and rose, and what the policy paid for it.

What it finds. Training on rewards (GRPO, PPO) in which all answers have the same reward; in which
the reward falls; in which it rises with the length of answers that no longer end; in which most
answers are cut off; in which the policy runs away from its reference.

Why it matters. Where all answers of a group have the same reward there is no advantage and no
gradient: the run goes on for hours and changes nothing. A reward that falls means that the run
learns the opposite. A reward that pays for length gets length. Far from its reference a policy
earns rewards with text that nobody would read.

How it is measured. The mean reward, its spread among the answers to one prompt, the length of
answers and the share that is cut off, and the KL divergence a token, from the first reports to the
last; `rewards.toml` has the bounds. A loss of 0 says nothing: in GRPO advantages cancel out.

When it is wrong. The first reports of a sound run may have no reward yet: with few reports it is a
warning. A spread that is gone once the reward has risen is a task that was learned. Rewards of each
batch's own prompts go up and down: only a fall beyond that counts. A long run with a small penalty
goes further away than a short one.

What to do. Print a few answers with their rewards. Give partial rewards that a first model can
earn; subtract a little for length; raise beta, the weight of the KL penalty.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Seen, Sign, Unsought
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.policy_curves import PolicyCurves, policy_curves

_TABLE = SeriesTable.read("rewards.toml")
#: Reports below which nothing is judged, and what a mean of a few answers can be told apart by.
REPORTS, RISEN = 3, 0.02
#: The share of groups without a spread from which on it is all of them, but for rounding.
ALL_GROUPS = 0.99
#: A spread below half of the last printed digit.
NO_SPREAD = 0.0005


@check(codes=_TABLE.symptoms, rerun_symptom=True)
def rewards(log: TrainingLog, config: TrainingConfig | None) -> Iterator[Sign | Seen | Unsought]:
    """Judge the curves of the log's main segment."""
    curves = policy_curves(log, config)
    if not log.is_preference or not curves.samples:
        raise DoesNotArise("the run was not trained on rewards of its answers")
    columns: dict[str, Series | None] = {role: curves.of(role) for role in curves.trained}
    columns |= {"signal": _signal(curves), "kl": _divergence(curves)}
    long = {
        name: series
        for name, series in columns.items()
        if series is not None and len(series) >= REPORTS
    }
    reward, spread = long.get("reward"), long.get("spread")
    if reward is not None:
        wide = spread.facts.start if spread is not None else 0.0
        # A reward model's rewards lie around 0: what they lie apart is what they are measured in.
        size = max(abs(reward.facts.start), wide, RISEN)
        long["relative_reward"] = Series(reward.iterations, reward.values / size)
    signs = list(_TABLE.signs(Columns(long), curves.unit))
    yield from signs
    if reward is None:
        raise Inconclusive(f"the log holds fewer than {REPORTS} rewards of answers")
    earned = reward.facts
    wrong = {sign.symptom for sign in signs if isinstance(sign, Sign)}
    has_risen = earned.end - earned.start >= max(RISEN, 1.15 * earned.noise)
    if has_risen and not wrong & {"no-signal", "follows-length"}:
        figures = {"first_reward": earned.start, "last_reward": earned.end}
        message = "The mean reward went from {first_reward:.3f} to {last_reward:.3f}."
        yield Seen(message, figures, learned=True)


def _signal(curves: PolicyCurves) -> Series | None:
    """How far the rewards of one prompt's answers lie apart, in what the log says of it."""
    groups, spread, reward = (curves.of(role) for role in ("flat_groups", "spread", "reward"))
    if groups is not None and (spread is None or len(groups) >= len(spread)):
        return Series(groups.iterations, np.where(groups.values >= ALL_GROUPS, 0.0, 1.0))
    if spread is not None:
        return Series(spread.iterations, np.where(spread.values <= NO_SPREAD, 0.0, spread.values))
    # Without a spread only rewards that are all 0 tell.
    return reward if reward is not None and not reward.values.any() else None


def _divergence(curves: PolicyCurves) -> Series | None:
    """The KL divergence a token; None where it is not known, or not measured."""
    kl, of_answer, length = (curves.of(role) for role in ("kl", "kl_of_answer", "length"))
    if kl is None and of_answer is not None and length is not None:
        kl = Series(of_answer.iterations, of_answer.values / max(float(length.values[-1]), 1.0))
    # With a beta of 0 trainers skip the reference, and print a divergence of 0.
    return kl if kl is not None and kl.values.any() else None
