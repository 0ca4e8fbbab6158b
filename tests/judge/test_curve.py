"""Where a loss has left its level, for the check, the trainer and the saves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlxdoctor.judge.curve import above
from mlxdoctor.judge.log_at_saves import blown_up


@pytest.mark.parametrize(
    ("loss", "level", "far"), [(1.51, 1.0, True), (1.49, 1.0, False), (0.7, 0.3, False)]
)
def test_above_is_by_a_ratio_and_by_nats(loss: float, level: float, far: bool) -> None:
    assert bool(above(loss, level, 1.5, 0.5)) is far
    assert above(np.array([loss]), np.array([level]), 1.5, 0.5).tolist() == [far]


def test_a_loss_that_is_not_finite_is_blown_up() -> None:
    falling = [2.0 - 0.1 * i for i in range(10)]
    values = np.array([*falling, math.nan, 6.0, 6.0, 1.0])
    bad, level = blown_up(values, None, 1)
    assert np.flatnonzero(bad).tolist() == [10, 11, 12]
    # The middle of three: the lowest report alone is no level.
    assert level[11] == pytest.approx(1.2)
