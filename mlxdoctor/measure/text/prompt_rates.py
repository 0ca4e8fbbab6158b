"""How often something happens per prompt, in the tuned model against the base model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlxdoctor.measure.text.statistics import SIGNIFICANCE, Interval, mcnemar_exact, wilson

#: Wald's sequential test: the share of prompts on which a sound model may do it, that on which a
#: broken one does, and the probabilities of a false alarm and of a miss.
SOUND_RATE, BROKEN_RATE, ALPHA, BETA = 0.05, 0.5, 0.001, 0.01
#: Share of prompts on which a broken model does it: below, it is impaired rather than broken. And
#: that above which the base model does the same, so that the tuning is not to blame.
BROKEN_SHARE, BASE_SHARE = 0.5, 0.2
#: How the base model compares: the end of a sentence, filled from `Rate.measured`.
AGAINST_BASE = (
    "[the base model does so on {base_hits} of them|there is no answer of the base model to "
    "compare with]"
)


@dataclass(frozen=True)
class Rate:
    """What was counted, prompt by prompt.

    Attributes:
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
            "tuned_share": self.interval.share,
            "share_low": self.interval.low,
            "share_high": self.interval.high,
            "p_value": self.p_value,
        }


def rate(tuned: Sequence[bool], base: Sequence[bool] | None) -> Rate:
    """Compare the prompts that the tuned model hit with those that the base model hit.

    Raises:
        ValueError: there is no prompt, or the two differ in length.
    """
    if not tuned or (base is not None and len(base) != len(tuned)):
        raise ValueError("one entry a prompt is needed, for both models")
    hits = sum(tuned)
    interval = wilson(hits, len(tuned))
    # Wald's test is read once over all prompts, so that their order is no matter.
    evidence = hits * math.log(BROKEN_RATE / SOUND_RATE)
    evidence += (len(tuned) - hits) * math.log((1 - BROKEN_RATE) / (1 - SOUND_RATE))
    decided = evidence >= math.log((1 - BETA) / ALPHA)
    is_large = interval.share >= BROKEN_SHARE
    if base is None:
        return Rate(len(tuned), hits, None, interval, None, decided, is_large and decided)
    base_hits = sum(base)
    both = sum(t and b for t, b in zip(tuned, base, strict=True))
    p_value = mcnemar_exact(hits - both, base_hits - both)
    base_is_sound = base_hits / len(base) < BASE_SHARE
    is_certain = p_value < SIGNIFICANCE or (decided and base_hits == 0)
    is_broken = is_large and base_is_sound and is_certain
    return Rate(len(tuned), hits, base_hits, interval, p_value, decided, is_broken)


#: Prompts without a single hit after which a broken model's rate is ruled out, by the same test.
ANSWERS_NEEDED = math.ceil(
    math.log(BETA / (1 - ALPHA)) / math.log((1 - BROKEN_RATE) / (1 - SOUND_RATE))
)


def too_few(answers: int) -> str | None:
    """Why that many answers can't show that a model is sound; None where they can."""
    if answers >= ANSWERS_NEEDED:
        return None
    are = "answer is" if answers == 1 else "answers are"
    return (
        f"{answers} {are} too few to say that nothing is wrong: it takes the answers to at least "
        f"{ANSWERS_NEEDED} different prompts"
    )


def is_raised(found: Rate) -> bool:
    """Whether the tuned model certainly hits more often than the base model, at any size."""
    if found.base is None or found.p_value is None:
        return found.decided
    return found.is_broken or (found.tuned > found.base and found.p_value < SIGNIFICANCE)
