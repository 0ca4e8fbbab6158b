"""Statistics of a loss curve against curves whose truth is known."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mlxdoctor.measure.losses.trend import (
    MAX_BLOCKS,
    LossFit,
    blocks,
    fit,
    noise,
    partition,
    theil_sen,
)


def fitted(values: object, every: int = 10) -> LossFit:
    losses = np.asarray(values, dtype=np.float64)
    result = fit((np.arange(len(losses)) + 1) * every, losses)
    assert result is not None
    return result


def scatter(count: int, sigma: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, sigma, count)


def test_nothing_finite_is_no_curve() -> None:
    assert fit(np.array([1, 2]), np.array([np.nan, np.inf])) is None


def test_what_is_not_finite_is_left_out() -> None:
    curve = fitted([3.0, np.nan, 2.0, np.inf, 1.0])
    assert curve.points == 3
    assert (curve.first, curve.last) == (3.0, 1.0)


def test_one_point() -> None:
    curve = fitted([2.5])
    assert (curve.start, curve.end, curve.minimum, curve.minimum_at) == (2.5, 2.5, 2.5, 10)
    assert not curve.is_falling
    assert curve.onset is None


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_noise_of_a_line_is_its_scatter(sigma: float) -> None:
    line = np.linspace(5.0, 1.0, 4000) + scatter(4000, sigma)
    assert noise(line) == pytest.approx(sigma, rel=0.1)


def test_theil_sen_finds_the_slope_despite_outliers() -> None:
    x = np.arange(60.0)
    y = 3.0 - 0.02 * x + scatter(60, 0.05)
    y[::9] += 10.0
    slope, (low, high) = theil_sen(x, y)
    assert slope == pytest.approx(-0.02, abs=0.004)
    assert low < -0.02 < high < 0.0


def test_interval_covers_no_trend_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        _, (low, high) = theil_sen(np.arange(30.0), scatter(30, 1.0, seed))
        inside += low <= 0.0 <= high
    # 95 % of 200 is 190; 182 is three standard deviations below.
    assert inside >= 182


@pytest.mark.parametrize(("memory", "least"), [(0.3, 0.9), (0.5, 0.9), (0.8, 0.88)])
def test_interval_is_wider_under_autocorrelation(memory: float, least: float) -> None:
    """Without the correction 0.88, 0.77 and 0.49 of the intervals hold the truth."""
    inside = 0
    for seed in range(200):
        steps = scatter(80, 1.0, seed)
        values = np.zeros(80)
        for i in range(1, 80):
            values[i] = memory * values[i - 1] + steps[i]
        _, (low, high) = theil_sen(np.arange(80.0), values)
        inside += low <= 0.0 <= high
    assert inside / 200 >= least


def test_change_point_is_found_where_it_is() -> None:
    y = np.concatenate([np.full(60, 1.0), np.full(40, 5.0)]) + scatter(100, 0.1)
    assert partition(np.arange(100.0), y) == [60]


def test_no_change_point_in_a_line_or_for_a_spike() -> None:
    y = np.linspace(3.0, 1.0, 100) + scatter(100, 0.05)
    assert partition(np.arange(100.0), y) == []
    y[50] += 20.0
    assert partition(np.arange(100.0), y) == []


def test_change_points_in_noise_are_rare() -> None:
    hits = sum(bool(partition(np.arange(100.0), scatter(100, 1.0, seed))) for seed in range(100))
    assert hits <= 5


def test_exploded_run_that_falls_back_is_not_decreasing_as_a_whole() -> None:
    healthy = np.linspace(2.0, 1.2, 40)
    broken = np.linspace(10.0, 7.0, 60)
    curve = fitted(np.concatenate([healthy, broken]) + scatter(100, 0.05))
    assert curve.onset == 410
    assert curve.before_onset == pytest.approx(1.6, abs=0.1)
    assert curve.is_falling
    assert curve.end > 6.5


def test_recovered_run_has_no_onset() -> None:
    y = np.concatenate([np.full(40, 1.5), np.full(10, 4.0), np.full(50, 1.4)])
    assert fitted(y + scatter(100, 0.05)).onset is None


@pytest.mark.parametrize(("slope", "falls"), [(-0.05, True), (0.05, False), (0.0, False)])
def test_a_fall_is_certain(slope: float, falls: bool) -> None:
    assert fitted(2.0 + slope * np.arange(40) + scatter(40, 0.1)).is_falling is falls


def test_minimum_is_no_lucky_batch() -> None:
    y = np.full(50, 2.0)
    y[20] = 0.1
    assert fitted(y).minimum == 2.0


def test_long_curves_are_reduced_and_fast() -> None:
    y = np.exp(-np.arange(100_000) / 30_000) + scatter(100_000, 0.1)
    begin = time.perf_counter()
    curve = fitted(y)
    assert time.perf_counter() - begin < 1.0
    assert curve.points == 100_000
    x, reduced = blocks(np.arange(100_000.0), y)
    assert len(x) == len(reduced) <= MAX_BLOCKS + 1


def test_constant_curve() -> None:
    curve = fitted([2.0] * 20)
    assert (curve.noise, curve.is_falling, curve.onset) == (0.0, False, None)
