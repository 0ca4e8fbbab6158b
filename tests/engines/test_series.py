"""The description of a series, against series whose truth is known."""

import math
import operator
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


EPOCH = [2.1345, 1.9876, 2.0451, 1.8723]


@pytest.mark.parametrize(
    ("values", "figures"),
    [
        ([], {"count": 0, "points": 0, "non_finite.count": 0, "jump": None}),
        ([NAN, INF, -INF], {"count": 3, "points": 0, "non_finite.count": 3}),
        ([2.5], {"edge": 1, "first": 2.5, "last": 2.5, "minimum_at": 10, "is_constant": False}),
        ([2.5, 3.0, 1.0], {"edge": 1, "minimum": 1.0, "minimum_at": 30, "noise": 0, "onset": None}),
        # What is not finite is placed, and left out.
        ([3.0, NAN, 2.0, INF, 1.0, NAN, NAN], {"points": 3, "first": 3.0, "last": 1.0}),
        ([3.0, NAN, 2.0, INF, NAN], {"non_finite.count": 3, "non_finite.share": 0.6}),
        ([3.0, NAN, 2.0, INF, NAN], {"non_finite.at_end": 2, "non_finite.end_begins": 40}),
        ([1.0, 0.0, 1.0], {"zeros.count": 1, "zeros.at_end": 0, "zeros.end_begins": None}),
        ([1.0, 0.0, 0.0], {"zeros.count": 2, "zeros.first": 20, "zeros.end_begins": 20}),
        ([840.0] * 20, {"is_constant": True, "noise": 0, "onset": None, "jump": None, "end": 840}),
        ([840.0, 841.0], {"is_constant": False}),
        (EPOCH * 3, {"repeats.period": 4, "repeats.compared": 8}),
        ([2.1345] * 9, {"repeats.period": 1}),
        # Two decimals agree by chance; so do a few reports.
        ([0.01, 0.02] * 9, {"repeats": None}),
        ([2.1345, 1.9876, 2.1345], {"repeats": None}),
        ([*EPOCH, *EPOCH, 1.0], {"repeats": None}),
        # A minimum is no lucky batch.
        ([*[2.0] * 20, 0.1, *[2.0] * 29], {"minimum": 2.0, "lowest": 0.1, "lowest_at": 210}),
        (
            [190.0, 180.0, 190.0, 27.0, 28.0],
            {"jump.iteration": 40, "jump.factor": 27.5 / 190, "jump.is_kept": True},
        ),
        ([5.0, 18940.0], {"jump.iteration": 20, "jump.factor": 3788.0, "jump.is_kept": True}),
        ([1.0, 1.0, 1.0, 50.0, *[1.0] * 4], {"jump.iteration": 40, "jump.is_kept": False}),
        ([*[100.0] * 20, *[14.0] * 20], {"jump.iteration": 210, "jump.factor": 0.14}),
        ([1e308, -1e308, 1e308, 1e-308, 1e308], {"highest": 1e308, "lowest": -1e308}),
        # A peak that grows to the end.
        (list(range(1, 21)), {"records": 1.0}),
        ([5.0] * 20, {"records": 0.0}),
    ],
)
def test_figures(values: list[float], figures: dict[str, float | None]) -> None:
    facts = described(values)
    for name, figure in figures.items():
        is_rough = name.endswith("factor")
        wanted = pytest.approx(figure, rel=0.05) if is_rough else figure
        assert operator.attrgetter(name)(facts) == wanted, name


@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_noise_of_a_line_is_its_scatter(sigma: float) -> None:
    line = np.linspace(5.0, 1.0, 4000) + scatter(4000, sigma)
    assert noise(line) == pytest.approx(sigma, rel=0.1)


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
