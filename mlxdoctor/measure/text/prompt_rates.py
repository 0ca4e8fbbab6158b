"""How often something happens per prompt, in the tuned model against the base model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlxdoctor.check import limit
from mlxdoctor.measure.text.statistics import Interval, mcnemar_exact, wilson


@dataclass(frozen=True)
class RateLimits:
    """When a rate over prompts is one that a sound model does not have."""

    significance: float = limit(
        0.01,
        unit="p-value, exact McNemar",
        source="convention; one test a symptom",
    )
    tuned_share: float = limit(
        0.5,
        unit="share of prompts",
        source="half of the prompts: below, the model is impaired rather than broken",
    )
    base_share: float = limit(
        0.2,
        unit="share of prompts",
        source="above, the base model does the same and the tuning is not to blame",
    )
    sound_rate: float = limit(
        0.05, unit="share of prompts", source="sequential test, p0: what a sound model may do"
    )
    broken_rate: float = limit(
        0.5, unit="share of prompts", source="sequential test, p1: what a broken model does"
    )
    alpha: float = limit(0.001, unit="probability", source="sequential test, false alarms")
    beta: float = limit(0.01, unit="probability", source="sequential test, misses")


USUAL = RateLimits()


@dataclass(frozen=True)
class Rate:
    """What was counted, prompt by prompt.

    Attributes:
        prompts: how many prompts were looked at.
        tuned: how many of them the tuned model hit.
        base: how many the base model hit; None where its answers are unknown.
        interval: the tuned model's share with its 95% Wilson interval.
        p_value: exact McNemar; None without the base model.
        decided: the sequential test is sure that the rate is a broken model's.
        is_broken: the rate is large, and certainly larger than the base model's.
    """

    prompts: int
    tuned: int
    base: int | None
    interval: Interval
    p_value: float | None
    decided: bool
    is_broken: bool

    @property
    def measured(self) -> dict[str, int | float | None]:
        """The figures for a finding."""
        return {
            "prompts": self.prompts,
            "tuned_hits": self.tuned,
            "base_hits": self.base,
            "tuned_share": round(self.interval.share, 4),
            "share_low": round(self.interval.low, 4),
            "share_high": round(self.interval.high, 4),
            "p_value": self.p_value,
        }

    @property
    def against_base(self) -> str:
        """How the base model compares, as the end of a sentence."""
        if self.base is None:
            return "there is no answer of the base model to compare with"
        if self.base == 0:
            return "the base model does so on none of them"
        return f"the base model does so on {self.base}"


def rate(tuned: Sequence[bool], base: Sequence[bool] | None, limits: RateLimits = USUAL) -> Rate:
    """Compare the prompts that the tuned model hit with those that the base model hit.

    Args:
        tuned: one entry a prompt.
        base: the same prompts, or None where the base model's answers are unknown.
        limits: what counts as broken.

    Raises:
        ValueError: there is no prompt, or the two differ in length.
    """
    if not tuned or (base is not None and len(base) != len(tuned)):
        raise ValueError("one entry a prompt is needed, for both models")
    hits = sum(tuned)
    interval = wilson(hits, len(tuned))
    decided = _decided(hits, len(tuned), limits)
    is_large = interval.share >= limits.tuned_share
    if base is None:
        return Rate(len(tuned), hits, None, interval, None, decided, is_large and decided)
    base_hits = sum(base)
    only_tuned = sum(t and not b for t, b in zip(tuned, base, strict=True))
    only_base = sum(b and not t for t, b in zip(tuned, base, strict=True))
    p_value = mcnemar_exact(only_tuned, only_base)
    base_is_sound = base_hits / len(base) < limits.base_share
    is_certain = p_value < limits.significance or (decided and base_hits == 0)
    is_broken = is_large and base_is_sound and is_certain
    return Rate(len(tuned), hits, base_hits, interval, p_value, decided, is_broken)


def answers_needed(limits: RateLimits = USUAL) -> int:
    """Prompts without a single hit after which a broken model's rate is ruled out.

    Wald's sequential test, as for the hits: below that, no finding says nothing.
    """
    each = math.log((1 - limits.broken_rate) / (1 - limits.sound_rate))
    return math.ceil(math.log(limits.beta / (1 - limits.alpha)) / each)


def too_few(answers: int, limits: RateLimits = USUAL) -> str | None:
    """Why that many answers can't show that a model is sound; None where they can."""
    needed = answers_needed(limits)
    if answers >= needed:
        return None
    are = "answer is" if answers == 1 else "answers are"
    return (
        f"{answers} {are} too few to say that nothing is wrong: it takes the answers to at least "
        f"{needed} different prompts"
    )


def is_raised(found: Rate, limits: RateLimits = USUAL) -> bool:
    """Whether the tuned model certainly hits more often than the base model, at any size."""
    if found.base is None or found.p_value is None:
        return found.decided
    is_more = found.tuned > found.base and found.p_value < limits.significance
    return found.is_broken or is_more


def _decided(hits: int, total: int, limits: RateLimits) -> bool:
    """Wald's sequential test, read once over all prompts so that their order is no matter."""
    evidence = hits * math.log(limits.broken_rate / limits.sound_rate)
    evidence += (total - hits) * math.log((1 - limits.broken_rate) / (1 - limits.sound_rate))
    return evidence >= math.log((1 - limits.beta) / limits.alpha)
