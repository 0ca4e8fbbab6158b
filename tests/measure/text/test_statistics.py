"""Tests over prompts, against published or hand-computed values."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from mlxdoctor.measure.text import statistics as ts
from mlxdoctor.measure.text.statistics import AGAINST_BASE, is_raised, rate, too_few
from mlxdoctor.template import fill


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_the_interval_matches_scipy(total: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, total))
    reference = binomtest(hits, total).proportion_ci(0.95, method="wilson")
    found = ts.wilson(hits, total)
    assert found.low == pytest.approx(reference.low, abs=1e-9)
    assert found.high == pytest.approx(reference.high, abs=1e-9)


@settings(deadline=None)
@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_the_exact_binomial(first: int, second: int) -> None:
    total = first + second
    expected = binomtest(first, total).pvalue if total else 1.0
    assert ts.mcnemar_exact(first, second) == pytest.approx(expected, rel=1e-6)


def test_sign_test_leaves_ties_and_nan_out() -> None:
    assert ts.sign_test([1.0] * 8 + [0.0, math.nan]) == pytest.approx(2 / 2**8)
    assert ts.sign_test([]) == 1.0


def test_permutation_is_exact_for_few_pairs() -> None:
    # Only all-plus and all-minus reach the observed sum.
    assert ts.paired_permutation([1.0, 2.0, 3.0, 4.0]) == pytest.approx(2 / 16)
    assert ts.paired_permutation([]) == 1.0


def test_permutation_keeps_its_level_and_never_says_zero() -> None:
    generator = np.random.default_rng(7)
    p_values = [ts.paired_permutation(generator.normal(size=10)) for _ in range(400)]
    assert np.mean(np.array(p_values) < 0.05) == pytest.approx(0.05, abs=0.03)
    assert ts.paired_permutation(np.ones(40)) == pytest.approx(1 / 20_001, rel=1e-6)


def test_the_interval_of_a_difference_holds_its_mean() -> None:
    found = ts.Paired.of([0.0] * 100, [0.0, 1.0] * 50).difference
    assert found.share == 0.5
    assert (found.low, found.high) == (pytest.approx(0.41, abs=0.03), pytest.approx(0.59, abs=0.03))


def hits(count: int, total: int) -> list[bool]:
    return [True] * count + [False] * (total - count)


@pytest.mark.parametrize(
    ("tuned", "base", "prompts", "broken", "raised"),
    [
        (3, 0, 3, True, True),
        (2, 0, 2, False, False),
        # Without the base model the sequential test decides.
        (3, None, 3, True, True),
        (3, None, 6, False, False),
        # A base model that does the same clears the adapter; a fifth of its answers is too many.
        (16, 16, 16, False, False),
        (20, 3, 20, True, True),
        (20, 4, 20, False, True),
        # Half of the prompts is enough.
        (10, 0, 20, True, True),
        (9, 0, 20, False, True),
    ],
)
def test_when_a_rate_is_a_broken_models(
    *, tuned: int, base: int | None, prompts: int, broken: bool, raised: bool
) -> None:
    of_base = hits(base, prompts) if base is not None else None
    found = rate(hits(tuned, prompts), of_base)
    assert (found.is_broken, is_raised(found)) == (broken, raised)
    assert (found.p_value is None) is (base is None)
    # The order of prompts does not matter.
    assert found.decided == rate(hits(tuned, prompts)[::-1], of_base).decided


def test_figures_and_words() -> None:
    found = rate(hits(4, 8), hits(1, 8))
    assert found.measured["tuned_share"] == 0.5
    assert found.measured["base_hits"] == 1
    assert fill(AGAINST_BASE, found.measured) == "the base model does so on 1 of them"
    assert "no answer of the base" in fill(AGAINST_BASE, rate(hits(4, 8), None).measured)


def test_eight_prompts_without_a_hit_rule_a_broken_model_out() -> None:
    assert too_few(8) is None
    assert "7 answers are too few" in (too_few(7) or "")
    assert "1 answer is too few" in (too_few(1) or "")
