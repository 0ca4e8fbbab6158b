"""Whether the policy stayed near its reference, and still varies its answers.

What it finds. A KL divergence from the reference that runs away, and an entropy that collapses.

Why it matters. Rewards are earned by text that a model can write. Far from its reference it earns
them with text that nobody would read; without entropy all answers to a prompt are the same, and
nothing more is learned.

How it is measured. The KL divergence a token, or an answer where the trainer sums it up, and the
entropy, from the first reports to the last.

When it is wrong. A long run with a small penalty goes further away than a short one; below the
limits nothing is said. A task with one right answer ends with little entropy: where the reward
rose it is a note only.

What to do. Raise beta, the weight of the KL penalty, or lower the learning rate; stop at the
checkpoint from before the divergence rose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.policy_curves import PolicyCurves, course, policy_curves

#: Settings that bound the length of an answer, as trainers call them.
_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens")


@dataclass(frozen=True)
class Limits:
    """When a policy is far from its reference, and when it has stopped to vary."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    far: float = limit(
        3.0, unit="nats a token", source="as surprising as a token of an untrained task"
    )
    lost: float = limit(10.0, unit="nats a token", source="a guess among 22,000 tokens")
    far_answer: float = limit(100.0, unit="nats an answer", source="PPO's targets are 6 to 20")
    lost_answer: float = limit(400.0, unit="nats an answer", source="as far, for 40 tokens")
    of_long: float = limit(
        1.0,
        unit="nats a token, for answers so long that it is more than `far_answer`",
        source="sound runs of GRPO on a small model: up to 1.7; of larger ones below 0.2",
    )
    saturated: float = limit(
        0.02, unit="share of tokens", source="mlx-lm-lora bounds the ratio at 20 nats"
    )
    entropy: float = limit(0.05, unit="nats a token", source="one token has 99% of the weight")
    entropy_share: float = limit(
        0.1, unit="of the first entropy", source="a sampled policy that goes on keeps a third"
    )


@check(
    codes={
        "kl-runaway": Symptom.warning(
            "the policy has run away from its reference",
            expected="a KL divergence that levels off below 1 nat a token",
            fix="Raise beta to 0.04 or more, or lower the learning rate to a tenth, and start "
            "again from the base.",
        ),
        "entropy-collapsed": Symptom.warning(
            "the policy has stopped to vary its answers",
            expected="an entropy that falls slowly",
            fix="Lower the learning rate, raise the temperature, or clip the upper side less.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def policy_distance(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Judge KL divergence and entropy of the log's main segment."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on preferences or rewards")
    curves = policy_curves(log, config)
    if not curves.samples:
        raise DoesNotArise("the run was trained on pairs, and not on rewards of its answers")
    kl = curves.of("kl") or curves.of("kl_of_answer")
    entropy = curves.of("entropy")
    if kl is None and entropy is None:
        raise Inconclusive("the log has neither KL divergences nor entropies")
    if kl is None or not kl.values.any():
        # With a beta of 0 trainers skip the reference, and print a divergence of 0.
        yield Unsought(("kl-runaway",), "the log has no KL divergence")
    else:
        yield from _runaway(curves, _tokens(curves, config), limits)
    if entropy is None:
        yield Unsought(("entropy-collapsed",), "the log has no entropy")
    else:
        yield from _collapsed(curves, limits)


def _tokens(curves: PolicyCurves, config: TrainingConfig | None) -> float:
    """How long answers are in the mean, or may be; 0 where neither log nor configuration says."""
    length = curves.of("length")
    if length is not None:
        return course(length).last
    stated = config.values if config is not None else {}
    allowed = [stated.get(name) for name in _LENGTHS]
    return max((float(one) for one in allowed if isinstance(one, int)), default=0.0)


def _runaway(curves: PolicyCurves, tokens: float, limits: Limits) -> Iterator[Sign]:
    by_token, by_answer = curves.of("kl"), curves.of("kl_of_answer")
    series = by_token if by_token is not None else by_answer
    if series is None or len(series) < limits.reports:
        return
    unit, far, lost = "a token", limits.far, limits.lost
    if by_token is None:
        long = limits.of_long * tokens
        unit, far = "an answer", max(limits.far_answer, long)
        lost = max(limits.lost_answer, limits.lost_answer / limits.far_answer * long)
    went, saturated = course(series), curves.of("kl_saturated")
    bounded = course(saturated).last if saturated is not None else 0.0
    if went.last < far and bounded < limits.saturated:
        return
    above = np.flatnonzero(series.values >= far)
    measured: dict[str, Measurement] = {"first_kl": went.first, "last_kl": went.last}
    bound = ""
    if bounded >= limits.saturated:
        bound = f", and is cut off at its bound for {bounded:.0%} of the tokens"
        measured["saturated"] = bounded
    yield Sign(
        "kl-runaway",
        f"The KL divergence from the reference went from {went.first:.3g} to {went.last:.3g} nats "
        f"{unit}{bound}.",
        measured,
        onset=int(series.iterations[above[0]]) if len(above) else None,
        severity=Severity.ERROR if went.last >= lost or bounded >= limits.saturated else None,
    )


def _collapsed(curves: PolicyCurves, limits: Limits) -> Iterator[Sign]:
    series = curves.of("entropy")
    if series is None or len(series) < limits.reports:
        return
    went = course(series)
    if went.last > limits.entropy or went.last > limits.entropy_share * went.first:
        return
    earned = curves.of("reward")
    rose = earned is not None and len(earned) >= limits.reports and course(earned).change > 0
    below = np.flatnonzero(series.values <= limits.entropy)
    yield Sign(
        "entropy-collapsed",
        f"The entropy went from {went.first:.3g} to {went.last:.3g} nats a token: all answers to "
        "a prompt are nearly the same.",
        {"first_entropy": went.first, "last_entropy": went.last},
        onset=int(series.iterations[below[0]]) if len(below) else None,
        severity=Severity.INFO if rose else None,
    )
