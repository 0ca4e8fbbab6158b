"""Tests and intervals that compare two models on the same prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

#: The p-value below which a difference over rows or prompts is no chance: convention.
SIGNIFICANCE = 0.01
#: Up to this many pairs, the permutation test tries every assignment of signs.
EXACT_PERMUTATION_PAIRS = 14
#: Random assignments of signs beyond, and samples of a bootstrap.
ASSIGNMENTS, RESAMPLED = 20_000, 2_000
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
class Interval:
    """A share with its confidence interval, all in [0, 1]."""

    share: float
    low: float
    high: float


def wilson(hits: int, total: int) -> Interval:
    """A share of at least one with its 95% Wilson (1927) score interval."""
    z = NormalDist().inv_cdf(0.975)
    share = hits / total
    denominator = 1 + z * z / total
    centre = (share + z * z / (2 * total)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p-value from the two discordant counts; 1.0 where both are 0."""
    total = only_first + only_second
    tail = sum(math.comb(total, k) for k in range(min(only_first, only_second) + 1))
    # Integers until the last division: 2 ** -total underflows before the sum does.
    return float(min(1.0, 2 * tail / 2**total))


def sign_test(differences: ArrayLike) -> float:
    """Two-sided sign test that the median difference is zero; ties and NaN are left out."""
    values = np.asarray(differences, dtype=np.float64)
    return mcnemar_exact(int(np.sum(values > 0)), int(np.sum(values < 0)))


def paired_permutation(differences: ArrayLike) -> float:
    """Two-sided p-value that the mean of finite paired differences is zero, by flipping signs.

    Exact up to 14 pairs; beyond, 20,000 random assignments and the add-one correction
    (Phipson and Smyth 2010), so that p is never zero.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[np.isfinite(values)]
    count = len(values)
    observed = abs(float(values.sum()))
    # Equal sums in another order differ by rounding; they must count as equal.
    observed -= 1e-9 * float(np.abs(values).sum())
    if count <= EXACT_PERMUTATION_PAIRS:
        signs = ((np.arange(2**count)[:, None] >> np.arange(count)) & 1) * 2.0 - 1.0
        return float(np.mean(np.abs(signs @ values) >= observed))
    signs = np.random.default_rng(0).integers(0, 2, size=(ASSIGNMENTS, count)) * 2.0 - 1.0
    hits = int(np.sum(np.abs(signs @ values) >= observed))
    return (hits + 1) / (ASSIGNMENTS + 1)


@dataclass(frozen=True)
class Paired:
    """The mean of a figure over prompts, of the base and of the tuned model.

    Attributes:
        difference: of the tuned model's less the base model's: the mean, with its 95% bootstrap
            percentile interval.
        p_value: of no difference, `paired_permutation`.
    """

    base: float
    tuned: float
    difference: Interval
    p_value: float

    @classmethod
    def of(cls, base: ArrayLike, tuned: ArrayLike) -> Self:
        """Compare float (prompts,) of both models, of one prompt at least."""
        before, after = np.asarray(base, np.float64), np.asarray(tuned, np.float64)
        gains = after - before
        picked = np.random.default_rng(0).integers(0, len(gains), size=(RESAMPLED, len(gains)))
        low, high = np.quantile(gains[picked].mean(axis=1), (0.025, 0.975))
        interval = Interval(float(gains.mean()), float(low), float(high))
        return cls(float(before.mean()), float(after.mean()), interval, paired_permutation(gains))

    def differs(self, sign: int) -> bool:
        """Whether the tuned model's figures are higher (1) or lower (-1), and not by chance."""
        return sign * self.difference.share > 0 and self.p_value < SIGNIFICANCE

    def measured(self, name: str) -> dict[str, float]:
        """The figures for a finding; `name` is what was compared."""
        return {
            f"base_{name}": self.base,
            f"tuned_{name}": self.tuned,
            "difference": self.difference.share,
            "difference_low": self.difference.low,
            "difference_high": self.difference.high,
            "p_value": self.p_value,
        }


@dataclass(frozen=True)
class Rate:
    """What was counted, prompt by prompt.

    Attributes:
        base, p_value: the base model's hits, and exact McNemar; None where its answers are unknown.
        interval: the tuned model's share with its 95% Wilson interval.
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
    """Compare the prompts, one at least, that tuned and base model hit."""
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
