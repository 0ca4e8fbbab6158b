"""Tests and intervals that compare two models on the same prompts."""

import math
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


@dataclass(frozen=True)
class Interval:
    """A share with its confidence interval, all in [0, 1]."""

    share: float
    low: float
    high: float


def wilson(hits: int, total: int) -> Interval:
    """A share with its 95% Wilson (1927) score interval.

    Raises:
        ValueError: `total` is not positive, or `hits` is not within it.
    """
    if total <= 0 or not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is not a share")
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
    if count == 0:
        return 1.0
    observed = abs(float(values.sum()))
    # Equal sums in another order differ by rounding; they must count as equal.
    observed -= 1e-9 * float(np.abs(values).sum())
    if count <= EXACT_PERMUTATION_PAIRS:
        signs = ((np.arange(2**count)[:, None] >> np.arange(count)) & 1) * 2.0 - 1.0
        return float(np.mean(np.abs(signs @ values) >= observed))
    signs = np.random.default_rng(0).integers(0, 2, size=(ASSIGNMENTS, count)) * 2.0 - 1.0
    hits = int(np.sum(np.abs(signs @ values) >= observed))
    return (hits + 1) / (ASSIGNMENTS + 1)


def mean_interval(values: ArrayLike) -> Interval:
    """The mean of values per prompt with its 95% bootstrap percentile interval.

    Raises:
        ValueError: there is no value.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) == 0:
        raise ValueError("the mean of nothing")
    picked = np.random.default_rng(0).integers(0, len(sample), size=(RESAMPLED, len(sample)))
    low, high = np.quantile(sample[picked].mean(axis=1), (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high))


@dataclass(frozen=True)
class Paired:
    """The mean of a figure over prompts, of the base and of the tuned model.

    Attributes:
        difference: of the tuned model's less the base model's, with its interval.
        p_value: of no difference, `paired_permutation`.
    """

    base: float
    tuned: float
    difference: Interval
    p_value: float

    @classmethod
    def of(cls, base: ArrayLike, tuned: ArrayLike) -> Self:
        """Compare float (prompts,) of both models.

        Raises:
            ValueError: there is no prompt, or they differ in length.
        """
        before, after = np.asarray(base, np.float64), np.asarray(tuned, np.float64)
        interval, p_value = mean_interval(after - before), paired_permutation(after - before)
        return cls(float(before.mean()), float(after.mean()), interval, p_value)

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
