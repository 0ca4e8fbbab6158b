"""Whether rewards tell answers apart, and whether they rise.

What it finds. Training on rewards in which every reward is zero, or all answers to a prompt have
the same one; in which the reward falls; and in which it rises with the length of answers that no
longer end.

Why it matters. Where all answers of a group have the same reward there is no advantage and no
gradient: the run goes on for hours and changes nothing. A reward that falls means that the run
learns the opposite. And a reward that pays for length gets length.

How it is measured. The mean reward, its spread among the answers to one prompt, the share of
groups without any, the length of answers and the share that is cut off, from the first reports to
the last. A loss of 0 says nothing: in GRPO advantages cancel out, and with no KL penalty the loss
is 0 by construction while the gradient is not.

When it is wrong. The first reports of a sound run may have no reward yet: with few reports it is a
warning. A spread that is gone once the reward has risen is a task that was learned. Rewards of
each batch's own prompts go up and down: only a fall beyond that counts.

What to do. Print a few answers with their rewards. Give partial rewards that a first model can
earn, or start from a model that earns some. Subtract a little for length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.policy_curves import (
    Course,
    PolicyCurves,
    correlation,
    course,
    policy_curves,
)


@dataclass(frozen=True)
class Limits:
    """When nothing was rewarded, and when the wrong thing was."""

    reports: int = limit(3, unit="reports", source="as many as show that it is no first batch")
    certain: int = limit(10, unit="reports", source="a sound run has earned a reward by then")
    flat: float = limit(
        0.0005, unit="standard deviation of rewards", source="half of the last printed digit"
    )
    flat_groups: float = limit(0.99, unit="share of groups", source="all but a rounding")
    risen: float = limit(
        0.02, unit="reward", source="what a mean of a few answers can be told apart by"
    )
    noises: float = limit(2.0, unit="noise of one report", source="a change beyond its batches'")
    fallen: float = limit(
        0.15,
        unit="of the first reward's size, or of its spread where that is more",
        source="sound runs of mlx-lm-lora: at most 0.05",
    )
    with_length: float = limit(
        0.7, unit="rank correlation of reward and length", source="measured on runs paid by length"
    )
    longer: float = limit(
        1.3, unit="times the first length", source="as far as the limit of the length allows"
    )
    more_unended: float = limit(
        0.3, unit="share of answers cut off", source="measured on runs paid by length: 0.5"
    )
    unended: float = limit(
        0.5, unit="share of answers cut off", source="answers that end are no longer the rule"
    )


@check(
    codes={
        "all-zero": Symptom.error(
            "every reward is zero",
            expected="rewards that differ between answers to one prompt",
            fix="Print answers with their rewards; give partial rewards that the model can earn.",
        ),
        "no-spread": Symptom.error(
            "all answers to a prompt have the same reward",
            expected="rewards that differ between answers to one prompt",
            fix="Print the answers to one prompt with their rewards: raise the temperature where "
            "the answers are alike, and give partial rewards where they are not.",
        ),
        "spread-lost": Symptom.warning(
            "rewards stopped to differ before they rose",
            expected="rewards that differ between answers until they are as high as can be",
            fix="Raise the temperature or the KL penalty, or lower the learning rate.",
        ),
        "fell": Symptom.error(
            "the reward falls",
            expected="a reward that rises",
            fix="Look for a lost minus sign in the loss, the advantage or the reward; otherwise "
            "lower the learning rate.",
        ),
        "follows-length": Symptom.error(
            "the reward rises with the length of answers that no longer end",
            expected="answers that end, and rewards for what they say",
            fix="Give no reward for length: subtract a little for each token, and none at all for "
            "an answer that does not end.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def rewards(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign | Seen | Unsought]:
    """Judge the rewards of the log's main segment."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on rewards")
    curves = policy_curves(log, config)
    reward = curves.of("reward")
    if reward is None:
        if not curves.samples:
            raise DoesNotArise("the run was trained on pairs, and not on rewards of its answers")
        raise Inconclusive("the log holds no rewards of answers")
    if len(reward) < limits.reports:
        raise Inconclusive(f"the log holds only {len(reward)} reports of a reward")
    earned = course(reward)
    spread = curves.of("spread")
    if earned.least == earned.most == 0.0 and (spread is None or not spread.values.any()):
        yield _all_zero(int(reward.iterations[0]), earned, limits)
        return
    if spread is None and curves.of("flat_groups") is None:
        yield Unsought(("no-spread", "spread-lost"), "the log does not say how rewards differ")
    unspread = _no_spread(curves, earned, limits)
    if unspread is not None:
        yield unspread
        return
    fell = _fell(earned, spread, limits)
    if fell is not None:
        yield fell
    if curves.of("length") is None or curves.of("cut_off") is None:
        why = "the log does not say how long answers are and how many are cut off"
        yield Unsought(("follows-length",), why)
    hacked = _follows_length(curves, earned, limits)
    if hacked is not None:
        yield hacked
    if fell is None and hacked is None and _has_risen(earned, limits):
        yield Seen(
            f"The mean reward went from {earned.first:.3f} to {earned.last:.3f}.",
            {"first_reward": earned.first, "last_reward": earned.last},
            learned=True,
        )


def _has_risen(earned: Course, limits: Limits) -> bool:
    return earned.rose(limits.risen, limits.noises / math.sqrt(3))


def _all_zero(first: int, earned: Course, limits: Limits) -> Sign:
    return Sign(
        "all-zero",
        f"Every reward is 0 in all {earned.reports} reports: no answer is better than another, and "
        "nothing can be learned.",
        {"reports": earned.reports},
        onset=first,
        severity=None if earned.reports >= limits.certain else Severity.WARNING,
    )


def _no_spread(curves: PolicyCurves, earned: Course, limits: Limits) -> Sign | None:
    """None of the groups had a spread: ever, or from some report on."""
    spread, groups = curves.of("spread"), curves.of("flat_groups")
    if groups is not None and (spread is None or len(groups) >= len(spread)):
        flat, iterations = groups.values >= limits.flat_groups, groups.iterations
    elif spread is not None:
        flat, iterations = spread.values <= limits.flat, spread.iterations
    else:
        return None
    reports = len(flat)
    if reports < limits.reports:
        return None
    if flat.all():
        return Sign(
            "no-spread",
            f"All answers to a prompt have the same reward in all {reports} reports (the mean is "
            f"{earned.last:.3f}): no answer is better than another, and nothing can be learned.",
            {"reports": reports, "last_reward": earned.last},
            onset=int(iterations[0]),
            severity=None if reports >= limits.certain else Severity.WARNING,
        )
    since = reports if not flat[-1] else int(np.flatnonzero(~flat)[-1]) + 1
    if reports - since < max(limits.certain, reports // 3) or _has_risen(earned, limits):
        return None
    return Sign(
        "spread-lost",
        f"From {curves.unit} {int(iterations[since])} on, in {reports - since} of {reports} "
        "reports, all answers to a prompt have the same reward, and the mean reward is "
        f"{earned.last:.3f} after {earned.first:.3f} in the first reports.",
        {
            "flat_reports": reports - since,
            "reports": reports,
            "first_reward": earned.first,
            "last_reward": earned.last,
        },
        onset=int(iterations[since]),
    )


def _fell(earned: Course, spread: Series | None, limits: Limits) -> Sign | None:
    # A reward model's rewards lie around 0: how far they lie apart is what they are measured in.
    apart = course(spread).first if spread is not None else 0.0
    size = max(abs(earned.first), apart, limits.risen)
    if earned.reports < limits.certain or not earned.fell(limits.fallen * size, limits.noises):
        return None
    return Sign(
        "fell",
        f"The mean reward went from {earned.first:.3f} in the first reports to {earned.last:.3f} "
        f"in the last: the run learns the opposite, or unlearns.",
        {"first_reward": earned.first, "last_reward": earned.last, "noise": earned.noise},
    )


def _follows_length(curves: PolicyCurves, earned: Course, limits: Limits) -> Sign | None:
    reward, length = curves.of("reward"), curves.of("length")
    cut_off = curves.of("cut_off")
    if reward is None or length is None or cut_off is None or not _has_risen(earned, limits):
        return None
    together, tokens, unended = correlation(reward, length), course(length), course(cut_off)
    if together is None or together < limits.with_length or unended.last < limits.unended:
        return None
    # Length is often found within the first few reports.
    more_unended = unended.last - unended.begun
    if tokens.last < limits.longer * tokens.begun and more_unended < limits.more_unended:
        return None
    measured: dict[str, Measurement] = {
        "first_reward": earned.begun,
        "last_reward": earned.last,
        "first_length": tokens.begun,
        "last_length": tokens.last,
        "last_cut_off": unended.last,
        "rank_correlation": together,
    }
    return Sign(
        "follows-length",
        f"The mean reward went from {earned.begun:.3f} to {earned.last:.3f} as answers grew from "
        f"{tokens.begun:.0f} to {tokens.last:.0f} tokens, and {unended.last:.0%} of them are cut "
        "off by the limit at the end: the reward pays for length.",
        measured,
    )
