"""The step that is usual for a model's size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.judge.guideline import BandLimits, step_of
from tests.checks.data_evidence import BASE, config_of

LIMITS = BandLimits()


def of(tmp_path: Path, base: BaseModel | None = None, **values: object):
    parameters = {"rank": 8, "dropout": 0.0, "scale": values.pop("scale", 20.0)}
    return step_of(config_of(tmp_path, lora_parameters=parameters, **values), base, LIMITS)


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
