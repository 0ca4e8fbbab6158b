"""Where a loss has left its level, for the check, the trainer and the saves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlxdoctor.judge.curve import Limits, above
from mlxdoctor.judge.log_at_saves import LogLimits, blown_up
from mlxdoctor.train.stopping import DivergenceLimits, is_diverging
from tests.conftest import check_called


@pytest.mark.parametrize(
    ("loss", "level", "far"), [(1.51, 1.0, True), (1.49, 1.0, False), (0.7, 0.3, False)]
)
def test_above_is_by_a_ratio_and_by_nats(loss: float, level: float, far: bool) -> None:
    assert bool(above(loss, level, 1.5, 0.5)) is far
    assert above(np.array([loss]), np.array([level]), 1.5, 0.5).tolist() == [far]


def test_all_who_judge_a_curve_have_the_same_limits() -> None:
    for other in (LogLimits(), DivergenceLimits(), check_called("loss-trend").limits):
        for name, value in vars(Limits()).items():
            assert getattr(other, name) == value


def test_the_trainer_looks_at_a_median_and_at_a_lower_ratio() -> None:
    limits = DivergenceLimits()
    assert is_diverging([2.0, 5.0, 5.0], 4.0, limits)
    assert not is_diverging([2.0, 2.0, 50.0], 2.0, limits)


def test_a_loss_that_is_not_finite_is_blown_up() -> None:
    falling = [2.0 - 0.1 * i for i in range(10)]
    values = np.array([*falling, math.nan, 6.0, 6.0, 1.0])
    bad, level = blown_up(values, None, 1, LogLimits())
    assert np.flatnonzero(bad).tolist() == [10, 11, 12]
    # The middle of three: the lowest report alone is no level.
    assert level[11] == pytest.approx(1.2)
