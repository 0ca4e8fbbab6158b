"""Whether rewards told answers apart and rose, and what the policy paid for it.

What it finds. Training on rewards (GRPO, PPO) in which all answers have the same reward; in which
the reward falls; in which it rises with the length of answers that no longer end; in which most
answers are cut off; in which the policy runs away from its reference, stops to vary its answers,
or stays where it was.

Why it matters. Where all answers of a group have the same reward there is no advantage and no
gradient: the run goes on for hours and changes nothing. A reward that falls means that the run
learns the opposite. A reward that pays for length gets length. Far from its reference a policy
earns rewards with text that nobody would read.

How it is measured. The mean reward, its spread among the answers to one prompt, the length of
answers and the share that is cut off, the KL divergence a token (or an answer, where the trainer
sums it up) and the entropy, from the first reports to the last. A loss of 0 says nothing: in GRPO
advantages cancel out.

When it is wrong. The first reports of a sound run may have no reward yet: with few reports it is a
warning. A spread that is gone once the reward has risen is a task that was learned, and so is a low
entropy. Rewards of each batch's own prompts go up and down: only a fall beyond that counts. A long
run with a small penalty goes further away than a short one.

What to do. Print a few answers with their rewards. Give partial rewards that a first model can
earn; subtract a little for length; raise beta, the weight of the KL penalty.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.policy_curves import PolicyCurves, Role, correlation, policy_curves

#: Settings that bound the length of an answer, as trainers call them.
_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")


@dataclass(frozen=True)
class Limits:
    """When nothing was rewarded, when the wrong thing was, and when the policy is far away."""

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
    unended: float = limit(
        0.5, unit="share of answers cut off", source="answers that end are no longer the rule"
    )
    cut_off: float = limit(
        0.8, unit="share of answers", source="the answers that end are exceptions"
    )
    nearly_all: float = limit(0.95, unit="share of answers", source="no answer ends, but by chance")
    far: float = limit(
        3.0, unit="nats a token", source="as surprising as a token of an untrained task"
    )
    far_answer: float = limit(100.0, unit="nats an answer", source="PPO's targets are 6 to 20")
    of_long: float = limit(
        1.0,
        unit="nats a token, for answers so long that it is more than `far_answer`",
        source="sound runs of GRPO on a small model: up to 1.7; of larger ones below 0.2",
    )
    saturated: float = limit(
        0.02, unit="share of tokens", source="mlx-lm-lora bounds the ratio at 20 nats"
    )
    entropy: float = limit(0.05, unit="nats a token", source="one token has 99% of the weight")
    unmoved: float = limit(
        1e-4, unit="nats a token", source="a hundredth of what sound runs have after ten updates"
    )
    unmoved_by: int = limit(
        50, unit="iterations", source="rates of 1e-6 and a warm-up take some updates to be seen"
    )


@check(
    codes={
        "no-signal": Symptom.error(
            "all answers to a prompt have the same reward",
            "rewards that differ between answers to one prompt",
            "Print the answers to one prompt with their rewards: raise the temperature where the "
            "answers are alike, and give partial rewards where they are not.",
            says="[Every reward is 0 in all {all_zero} reports|From {unit} {onset} on, in "
            "{flat_reports} of {reports:* report}, all answers to a prompt have the same reward "
            "(the mean is {last_reward:.3f})]: no answer is better than another, and nothing can "
            "be learned.",
        ),
        "fell": Symptom.error(
            "the reward falls",
            "a reward that rises",
            "Look for a lost minus sign in the loss, the advantage or the reward; otherwise lower "
            "the learning rate.",
            says="The mean reward went from {first_reward:.3f} in the first reports to "
            "{last_reward:.3f} in the last: the run learns the opposite, or unlearns.",
        ),
        "follows-length": Symptom.error(
            "the reward rises with the length of answers that no longer end",
            "answers that end, and rewards for what they say",
            "Give no reward for length: subtract a little for each token, and none at all for an "
            "answer that does not end.",
            says="The mean reward went from {first_reward:.3f} to {last_reward:.3f} as answers "
            "grew from {first_length:.0f} to {last_length:.0f} tokens, and {last_cut_off:.0%} of "
            "them are cut off by the limit at the end: the reward pays for length.",
        ),
        "cut-off": Symptom.warning(
            "most answers are cut off by the limit on their length",
            "answers that end by themselves",
            "Raise max_completion_length until nine of ten answers end by themselves.",
            says="{cut_off:.0%} of the answers are cut off by the limit on their length in the "
            "median report, and {first_cut_off:.0%} in the first ones[; their mean length is "
            "{last_length:.0f} tokens at the end].",
        ),
        "left-reference": Symptom.warning(
            "the policy has run away from its reference, or has stopped to vary its answers",
            "a KL divergence that levels off below 1 nat a token, and an entropy that falls slowly",
            "Raise beta to 0.04 or more, or lower the learning rate to a tenth, and start again "
            "from the base.",
            says="[The KL divergence from the reference went from {first_kl:.3g} to {last_kl:.3g} "
            "nats {kl_of}|The entropy went from {first_entropy:.3g} to {last_entropy:.3g} nats a "
            "token: all answers to a prompt are nearly the same][, and is cut off at its bound for "
            "{saturated:.0%} of the tokens].",
        ),
        "unmoved": Symptom.warning(
            "the policy stays where its reference is",
            "a divergence that grows a little",
            "See whether the adapter's weights changed, and raise the learning rate.",
            says="The KL divergence from the reference is at most {largest_kl:.2g} nats in "
            "{reports:* report}: the policy is what it was.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def rewards(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign | Seen | Unsought]:
    """Judge the curves of the log's main segment."""
    curves = policy_curves(log, config)
    if not log.is_preference or not curves.samples:
        raise DoesNotArise("the run was not trained on rewards of its answers")
    facts: dict[Role, SeriesFacts] = {}
    for role in curves.trained:
        series = curves.of(role)
        if series is not None and len(series) >= limits.reports:
            facts[role] = describe(series.iterations, series.values)
    yield from _lacking(facts)
    yield from _left(curves, facts, _tokens(facts, config), limits)
    if (cut := _cut_off(curves, facts, limits)) is not None:
        yield cut
    earned = facts.get("reward")
    if earned is None:
        raise Inconclusive(f"the log holds fewer than {limits.reports} rewards of answers")
    if (flat := _no_signal(curves, facts, earned, limits)) is not None:
        yield flat
        return
    spread = facts.get("spread")
    # A reward model's rewards lie around 0: how far they lie apart is what they are measured in.
    size = max(abs(earned.start), spread.start if spread is not None else 0.0, limits.risen)
    change, noise = earned.end - earned.start, limits.noises * earned.noise
    figures: dict[str, Measurement] = {"first_reward": earned.start, "last_reward": earned.end}
    if earned.points >= limits.certain and -change >= max(limits.fallen * size, noise):
        yield Sign("fell", figures)
    elif (hacked := _follows_length(curves, facts, earned, limits)) is not None:
        yield hacked
    elif _has_risen(earned, limits):
        message = "The mean reward went from {first_reward:.3f} to {last_reward:.3f}."
        yield Seen(message, figures, learned=True)


def _lacking(facts: dict[Role, SeriesFacts]) -> Iterator[Unsought]:
    if "spread" not in facts and "flat_groups" not in facts:
        yield Unsought(("no-signal",), "the log does not say how rewards differ")
    if "length" not in facts or "cut_off" not in facts:
        why = "the log does not say how long answers are and how many are cut off"
        yield Unsought(("follows-length", "cut-off"), why)
    kl = facts.get("kl") or facts.get("kl_of_answer")
    # With a beta of 0 trainers skip the reference, and print a divergence of 0.
    if kl is None or kl.zeros.count == kl.points:
        yield Unsought(("left-reference", "unmoved"), "the log has no KL divergence")


def _has_risen(earned: SeriesFacts, limits: Limits) -> bool:
    noise = limits.noises / math.sqrt(3) * earned.noise
    return earned.end - earned.start >= max(limits.risen, noise)


def _tokens(facts: dict[Role, SeriesFacts], config: TrainingConfig | None) -> float:
    """How long answers are in the mean, or may be; 0 where neither log nor configuration says."""
    if "length" in facts:
        return facts["length"].end
    stated = config.values if config is not None else {}
    allowed = [stated.get(name) for name in _LENGTHS]
    return max((float(length) for length in allowed if isinstance(length, int)), default=0.0)


def _left(
    curves: PolicyCurves, facts: dict[Role, SeriesFacts], tokens: float, limits: Limits
) -> Iterator[Sign]:
    """A divergence that ran away or never began, and an entropy that is gone."""
    role: Role = "kl" if "kl" in facts else "kl_of_answer"
    kl, entropy, bounded = facts.get(role), facts.get("entropy"), facts.get("kl_saturated")
    if kl is not None and kl.zeros.count < kl.points:
        far, lost = limits.far, 10.0 / 3.0 * limits.far
        if role == "kl_of_answer":
            far = max(limits.far_answer, limits.of_long * tokens)
            lost = 4.0 * far
        share = bounded.end if bounded is not None else 0.0
        is_bounded = share >= limits.saturated
        largest = max(abs(kl.highest), abs(kl.lowest))
        series = curves.of(role)
        is_begun = series is not None and series.iterations[-1] >= limits.unmoved_by
        if kl.end >= far or is_bounded:
            measured: dict[str, Measurement] = {
                "first_kl": kl.start,
                "last_kl": kl.end,
                "kl_of": "a token" if role == "kl" else "an answer",
                "saturated": share if is_bounded else None,
            }
            severity = Severity.ERROR if is_bounded or kl.end >= lost else None
            yield Sign("left-reference", measured, onset=kl.onset, severity=severity)
            return
        if kl.points >= limits.certain and largest <= limits.unmoved and is_begun:
            yield Sign("unmoved", {"reports": kl.points, "largest_kl": largest})
    if entropy is not None and entropy.end <= min(limits.entropy, 0.1 * entropy.start):
        # A task with one right answer ends so.
        earned = facts.get("reward")
        rose = earned is not None and earned.end > earned.start
        figures = {"first_entropy": entropy.start, "last_entropy": entropy.end}
        yield Sign("left-reference", figures, severity=Severity.INFO if rose else None)


def _cut_off(curves: PolicyCurves, facts: dict[Role, SeriesFacts], limits: Limits) -> Sign | None:
    cut, length, series = facts.get("cut_off"), facts.get("length"), curves.of("cut_off")
    if cut is None or series is None or cut.points <= limits.reports:
        return None
    if min(cut.first, cut.start, cut.end, cut.median) < limits.cut_off:
        return None
    measured: dict[str, Measurement] = {
        "cut_off": cut.median,
        "first_cut_off": cut.start,
        "last_length": length.end if length is not None else None,
    }
    severity = Severity.ERROR if min(cut.start, cut.median) >= limits.nearly_all else None
    return Sign("cut-off", measured, onset=int(series.iterations[0]), severity=severity)


def _no_signal(
    curves: PolicyCurves, facts: dict[Role, SeriesFacts], earned: SeriesFacts, limits: Limits
) -> Sign | None:
    """No group had a spread: ever, or from some report on before the reward rose."""
    spread, groups = curves.of("spread"), curves.of("flat_groups")
    is_unspread = "spread" not in facts or facts["spread"].highest == 0.0
    if earned.zeros.count == earned.points and is_unspread:
        flat, iterations = np.ones(earned.points, bool), np.zeros(0, np.int64)
        all_zero: int | None = earned.points
    else:
        all_zero = None
        if groups is not None and (spread is None or len(groups) >= len(spread)):
            flat, iterations = groups.values >= limits.flat_groups, groups.iterations
        elif spread is not None:
            flat, iterations = spread.values <= limits.flat, spread.iterations
        else:
            return None
    reports = len(flat)
    since = 0 if flat.all() else reports if not flat[-1] else int(np.flatnonzero(~flat)[-1]) + 1
    count = reports - since
    if reports < limits.reports or count < (limits.reports if not since else limits.certain):
        return None
    if since and (count < reports // 3 or _has_risen(earned, limits)):
        return None
    series = curves.of("reward")
    first = int(series.iterations[0]) if series is not None else 0
    return Sign(
        "no-signal",
        {
            "all_zero": all_zero,
            "unit": curves.unit,
            "flat_reports": count,
            "reports": reports,
            "first_reward": earned.start,
            "last_reward": earned.end,
        },
        onset=int(iterations[since]) if len(iterations) else first,
        severity=Severity.WARNING if since or reports < limits.certain else None,
    )


def _follows_length(
    curves: PolicyCurves, facts: dict[Role, SeriesFacts], earned: SeriesFacts, limits: Limits
) -> Sign | None:
    reward, length = curves.of("reward"), curves.of("length")
    tokens, cut = facts.get("length"), facts.get("cut_off")
    if reward is None or length is None or tokens is None or cut is None:
        return None
    together = correlation(reward, length)
    if together is None or together < limits.with_length or cut.end < limits.unended:
        return None
    # Length is often found within the first few reports.
    is_longer = tokens.end >= limits.longer * tokens.first or cut.end - cut.first >= 0.3
    if not is_longer or not _has_risen(earned, limits):
        return None
    return Sign(
        "follows-length",
        {
            "first_reward": earned.first,
            "last_reward": earned.end,
            "first_length": tokens.first,
            "last_length": tokens.end,
            "last_cut_off": cut.end,
            "rank_correlation": together,
        },
    )
