"""The step that is usual for a model's size, and planned rates against mlx-lm's schedules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.judge.rate import planned_rates, step_of
from tests.checks.data_evidence import BASE, config_of


def of(tmp_path: Path, base: BaseModel | None = None, **values: object):
    parameters = {"rank": 8, "dropout": 0.0, "scale": values.pop("scale", 20.0)}
    return step_of(config_of(tmp_path, lora_parameters=parameters, **values), base)


def test_the_band_is_for_the_size_of_the_base(tmp_path: Path) -> None:
    base = BaseModel.read(BASE)
    step = of(tmp_path, base, learning_rate=3e-4)
    assert step.parameters == base.parameter_count
    assert step.size == pytest.approx(6e-3)
    assert step.high / step.low == pytest.approx(25.0)
    assert step.high == pytest.approx(5e-4 * (1e10 / base.parameter_count) ** 0.4)
    assert step.low < step.size < step.high


def test_times_beyond_the_edges(tmp_path: Path) -> None:
    step = of(tmp_path, learning_rate=1e-3)
    assert step.parameters is None
    assert step.times_above == pytest.approx(step.size / step.high)
    assert step.times_above > 1.0 > step.times_below
    assert of(tmp_path, learning_rate=1e-9).times_below > 1.0
    assert math.isinf(of(tmp_path, learning_rate=1e-4, scale=0.0).times_below)


def test_a_negative_scale_steps_as_far(tmp_path: Path) -> None:
    assert of(tmp_path, learning_rate=1e-4, scale=-20.0).size == pytest.approx(2e-3)


@pytest.mark.parametrize("rate", [0.0, -1e-4, math.nan, math.inf])
def test_no_usable_rate_is_no_step(tmp_path: Path, rate: float) -> None:
    assert of(tmp_path, learning_rate=rate) is None


def test_a_full_fine_tune_has_no_such_step(tmp_path: Path) -> None:
    assert of(tmp_path, learning_rate=1e-5, fine_tune_type="full") is None


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
    assert ours is not None
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-10)


def test_without_a_schedule_the_rate_is_constant(tmp_path: Path) -> None:
    rates = planned_rates(config_of(tmp_path, learning_rate=2e-4), 3)
    assert rates is not None
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
