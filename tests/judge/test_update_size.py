"""When an update outgrew what training can have done."""

from __future__ import annotations

import pytest

from mlxdoctor.judge.save_flaws import SaveLimits
from mlxdoctor.judge.update_size import CourseLimits, has_jumped
from tests.conftest import check_called

LIMITS = CourseLimits()


@pytest.mark.parametrize(
    ("growth", "size", "jumped"), [(1.01, 1.01, True), (0.99, 1.01, False), (1.01, 0.99, False)]
)
def test_a_jump_is_both_fast_and_large(growth: float, size: float, jumped: bool) -> None:
    found = has_jumped(growth * LIMITS.jump, size * LIMITS.jump_size, LIMITS)
    assert found is jumped


def test_checks_and_bisect_judge_sizes_by_the_same_limits() -> None:
    for name in ("weight-drift", "checkpoint-history"):
        shared = vars(SaveLimits()).keys() & vars(check_called(name).limits).keys()
        assert "nominal_large" in shared
        for field in shared:
            assert getattr(SaveLimits(), field) == getattr(check_called(name).limits, field)
