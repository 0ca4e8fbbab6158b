"""The step that is usual for a model's size, and planned rates against mlx-lm's schedules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.judge.rate import planned_rates
from tests.checks.data_evidence import config_of

UPDATES = 40
SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"name": "cosine_decay", "arguments": [4e-4, 25, 1e-5]},
    "cosine-to-zero": {"name": "cosine_decay", "arguments": [4e-4, 25]},
    "linear": {"name": "linear_schedule", "arguments": [3e-4, 1e-4, 30]},
    "linear-warm-up": {"name": "linear_schedule", "arguments": [3e-4, 1e-4, 20], "warmup": 8},
    "cosine-warm-up": {
        **{"name": "cosine_decay", "arguments": [4e-4, 20, 1e-5]},
        **{"warmup": 10, "warmup_init": 1e-7},
    },
    "exponential": {"name": "exponential_decay", "arguments": [1e-3, 0.9]},
    "steps": {"name": "step_decay", "arguments": [1e-3, 0.5, 7], "warmup": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_they_are_those_of_mlx_lm(tmp_path: Path, name: str) -> None:
    import mlx.core as mx
    from mlx_lm.tuner.utils import build_schedule

    schedule = build_schedule(SCHEDULES[name])
    # An optimiser asks for the rate before it counts the update.
    theirs = [float(mx.array(schedule(mx.array(step))).item()) for step in range(UPDATES)]
    ours = planned_rates(config_of(tmp_path, lr_schedule=SCHEDULES[name]), UPDATES)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-10)


def test_without_a_schedule_the_rate_is_constant(tmp_path: Path) -> None:
    rates = planned_rates(config_of(tmp_path, learning_rate=2e-4), 3)
    assert rates.tolist() == [2e-4, 2e-4, 2e-4]


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "polynomial", "arguments": [1e-3, 2.0]},
        {"name": "cosine_decay", "arguments": [1e-3]},
        {"name": "cosine_decay", "arguments": [1e-3, 0]},
        {"name": "cosine_decay", "arguments": ["fast", 10]},
        {"name": "cosine_decay"},
        {"name": "linear_schedule", "arguments": [1e-3, 1e-4, 9], "warmup": 5, "warmup_init": "a"},
    ],
)
def test_a_schedule_that_mlx_would_not_build_has_no_rates(
    tmp_path: Path, schedule: dict[str, Any]
) -> None:
    assert planned_rates(config_of(tmp_path, lr_schedule=schedule), 5) is None
