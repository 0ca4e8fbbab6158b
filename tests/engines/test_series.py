"""The description of a series, against series whose truth is known."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import pytest

from mlxdoctor.engines.series import MAX_BLOCKS, SeriesFacts, blocks, describe, noise, trend

NAN, INF = math.nan, math.inf


def described(values: Sequence[float] | np.ndarray, every: int = 10) -> SeriesFacts:
    array = np.asarray(values, dtype=np.float64)
    return describe((np.arange(len(array)) + 1) * every, array)


def scatter(count: int, sigma: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, sigma, count)


@pytest.mark.parametrize("values", [[], [NAN], [NAN, INF, -INF]])
def test_nothing_finite(values: list[float]) -> None:
    facts = described(values)
    assert (facts.count, facts.points, facts.non_finite.count) == (len(values), 0, len(values))
    assert math.isnan(facts.end)
    assert facts.jump is None


@pytest.mark.parametrize("values", [[2.5], [2.5, 1.0], [2.5, 3.0, 1.0]])
def test_one_to_three_values(values: list[float]) -> None:
    facts = described(values)
    assert (facts.points, facts.edge, facts.first, facts.last) == (len(values), 1, 2.5, values[-1])
    assert (facts.minimum, facts.minimum_at) == (min(values), 10 * (values.index(min(values)) + 1))
    assert (facts.noise, facts.onset) == (0.0, None)


def test_what_is_not_finite_is_placed_and_left_out() -> None:
    facts = described([3.0, NAN, 2.0, INF, 1.0, NAN, NAN])
    assert (facts.points, facts.first, facts.last) == (3, 3.0, 1.0)
    where = facts.non_finite
    assert (where.count, where.first, where.last) == (4, 20, 70)
    assert (where.at_end, where.end_begins, where.share) == (2, 60, pytest.approx(4 / 7))


@pytest.mark.parametrize(
    ("values", "count", "at_end", "end_begins"),
    [([1.0, 0.0, 1.0], 1, 0, None), ([1.0, 0.0, 0.0], 2, 2, 20), ([0.0, 0.0], 2, 2, 10)],
)
def test_exact_zeros(values: list[float], count: int, at_end: int, end_begins: int | None) -> None:
    where = described(values).zeros
    assert (where.count, where.at_end, where.end_begins) == (count, at_end, end_begins)


def test_constant() -> None:
    facts = described([840.0] * 20)
    assert facts.is_constant
    assert (facts.noise, facts.onset, facts.jump, facts.start, facts.end) == (
        0.0,
        None,
        None,
        840.0,
        840.0,
    )
    assert not described([840.0]).is_constant
    assert not described([840.0, 841.0]).is_constant


def test_repeats_with_a_period() -> None:
    epoch = [2.1345, 1.9876, 2.0451, 1.8723]
    repeats = described(epoch * 3).repeats
    assert repeats is not None
    assert (repeats.period, repeats.compared) == (4, 8)
    assert described([2.1345] * 9).repeats is not None
    # Two decimals agree by chance; so do a few reports.
    assert described([0.01, 0.02] * 9).repeats is None
    assert described([2.1345, 1.9876, 2.1345]).repeats is None
    assert described([*epoch, *epoch, 1.0]).repeats is None


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_noise_of_a_line_is_its_scatter(sigma: float) -> None:
    line = np.linspace(5.0, 1.0, 4000) + scatter(4000, sigma)
    assert noise(line) == pytest.approx(sigma, rel=0.1)


def test_minimum_is_no_lucky_batch() -> None:
    values = np.full(50, 2.0)
    values[20] = 0.1
    facts = described(values)
    assert (facts.minimum, facts.lowest, facts.lowest_at) == (2.0, 0.1, 210)


def test_a_rise_for_good_has_an_onset() -> None:
    """Although the whole falls from 10 to 7 after it, and the first part had fallen too."""
    healthy, broken = np.linspace(2.0, 1.2, 40), np.linspace(10.0, 7.0, 60)
    facts = described(np.concatenate([healthy, broken]) + scatter(100, 0.05))
    assert facts.onset == 410
    assert facts.minimum == pytest.approx(1.3, abs=0.1)
    assert facts.end > 6.5


@pytest.mark.parametrize(
    "values",
    [
        np.concatenate([np.full(40, 1.5), np.full(10, 4.0), np.full(50, 1.4)]),
        np.linspace(3.0, 1.0, 100),
        np.concatenate([np.linspace(3.0, 1.0, 98), [4.0, 4.0]]),
    ],
)
def test_no_onset_where_it_recovered_fell_or_just_rose(values: np.ndarray) -> None:
    assert described(values + scatter(100, 0.05)).onset is None


@pytest.mark.parametrize(
    ("values", "place", "factor", "kept"),
    [
        ([190.0, 180.0, 190.0, 27.0, 28.0], 40, 27.5 / 190, True),
        ([5.0, 18940.0], 20, 3788.0, True),
        ([1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0], 40, 1.0, False),
        ([*[100.0] * 20, *[14.0] * 20], 210, 0.14, True),
    ],
)
def test_a_jump(values: list[float], place: int, factor: float, kept: bool) -> None:
    jump = described(values).jump
    assert jump is not None
    assert (jump.iteration, jump.is_kept) == (place, kept)
    assert jump.factor == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize(
    ("values", "at", "factor"),
    [
        ([2.0, 2.1, 1.9, 40.0, 2.0, 2.1, 1.9], 40, 20.0),
        ([9.0, 2.0, 2.1, 1.9, 2.0], None, None),
        ([5.0, 2.0, 1.0, 0.5, 0.2, 0.1], None, None),
        ([2.0, 2.1, 3.5, 2.0, 1.9], None, None),
        ([1.0, 1.0, 1e300, 1.0, 1.0], 30, 1e300),
    ],
)
def test_a_spike(values: list[float], at: int | None, factor: float | None) -> None:
    spike = described(values).spike
    assert (spike and spike.iteration) == at
    assert (spike and spike.factor) == (factor and pytest.approx(factor, rel=0.1))


def test_huge_values_give_finite_figures() -> None:
    facts = described([1e308, -1e308, 1e308, 1e-308, 1e308, 1e300])
    assert (facts.highest, facts.lowest) == (1e308, -1e308)


def test_records_of_a_peak_that_grows() -> None:
    assert described(list(range(1, 21))).records == 1.0
    assert described([5.0] * 20).records == 0.0


def test_long_series_are_reduced_and_fast() -> None:
    values = np.exp(-np.arange(100_000) / 30_000) + scatter(100_000, 0.1)
    describe(np.arange(100), values[:100])
    begin = time.process_time()
    facts = describe(np.arange(100_000), values)
    assert time.process_time() - begin < 0.1
    assert facts.points == 100_000
    x, reduced = blocks(np.arange(100_001), np.zeros(100_001))
    assert len(x) == len(reduced) <= MAX_BLOCKS + 1


def test_a_slope_despite_outliers() -> None:
    values = 3.0 - 0.02 * np.arange(60.0) + scatter(60, 0.05)
    values[::9] += 10.0
    line = trend(np.arange(60), values)
    assert line.slope == pytest.approx(-0.02, abs=0.004)
    assert line.low < -0.02 < line.high < 0.0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0]])
def test_few_values_have_no_interval(values: list[float]) -> None:
    line = trend(np.arange(len(values)), np.array(values))
    assert (line.low, line.high) == (-INF, INF)


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.91), (0.3, 0.89), (0.5, 0.88), (0.8, 0.8)])
def test_interval_is_wider_under_autocorrelation(memory: float, least: float) -> None:
    """Without the correction 0.88, 0.77 and 0.49 of the intervals hold the truth from 0.3 on."""
    inside = 0
    for seed in range(100):
        values = scatter(80, 1.0, seed)
        for i in range(1, 80):
            values[i] += memory * values[i - 1]
        line = trend(np.arange(80), values)
        inside += line.low <= 0.0 <= line.high
    assert inside / 100 >= least
