"""Losses against the levels that can be known beforehand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import BASE, chat, rows_of, write_data
from tests.checks.log_evidence import LogWriter, decay, errors, finding, found, judge
from tests.conftest import check_called

loss_level = check_called("loss-level")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return BaseModel.read(BASE)


@pytest.mark.parametrize(
    ("first", "symptoms"),
    [
        (12.9, {"starts-above-uniform": "error"}),
        (12.5, {"starts-high": "info"}),
        (8.1, {"starts-high": "info"}),
        (7.9, {}),
    ],
)
def test_without_a_model(logs: LogWriter, first: float, symptoms: dict[str, str]) -> None:
    outcome = judge(loss_level, logs.losses(decay(20, 5.0, 2.0), {1: first}))
    assert found(outcome) == symptoms


@pytest.mark.parametrize(
    ("excess", "severity"), [(1.6, "error"), (1.4, "warning"), (0.3, "warning"), (0.1, None)]
)
def test_with_the_model(
    logs: LogWriter, base: BaseModel, excess: float, severity: str | None
) -> None:
    uniform = math.log(base.vocab_size or 0)
    outcome = judge(loss_level, logs.losses(decay(20, 5.0, 2.0), {1: uniform + excess}), base)
    assert found(outcome).get("starts-above-uniform") == severity
    if severity is not None:
        one = finding(outcome, "starts-above-uniform")
        assert one.measured["uniform_guess"] == pytest.approx(uniform)
        assert one.onset == 1


def test_constant_guess(logs: LogWriter, tmp_path: Path) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    above = judge(
        loss_level, logs.losses(decay(20, 4.0, floor + 0.4, 0.01), {1: floor - 0.2}), rows
    )
    assert found(above) == {"ends-above-unigram": "error"}
    assert finding(above, "ends-above-unigram").measured["unigram_entropy"] == floor
    below = judge(
        loss_level, logs.losses(decay(20, 4.0, floor - 0.4, 0.01), {1: floor - 0.2}), rows
    )
    assert found(below) == {}


def test_a_base_that_was_no_better_is_only_warned_about(logs: LogWriter, tmp_path: Path) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    log = logs.losses(decay(20, 6.0, floor + 0.4, 0.01), {1: floor + 2.0})
    assert found(judge(loss_level, log, rows)) == {"ends-above-unigram": "warning"}


@pytest.mark.parametrize(
    ("losses", "symptoms"),
    [
        ([2.0, 0.2, 0.1], {"suspiciously-low": "info"}),
        ([2.0, 0.5, 0.01], {"suspiciously-low": "warning"}),
        ([2.0, 1.0, 0.5], {}),
        ([2.0, 1.5, 1.0, 0.7, 0.2], {}),
    ],
)
def test_low_at_once(logs: LogWriter, losses: list[float], symptoms: dict[str, str]) -> None:
    assert found(judge(loss_level, logs.losses(losses, {1: 2.1}))) == symptoms


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("mlx-lm-18-a-0.22.0-suspiciously-fast.log", {"suspiciously-low": "info"}),
        ("torch-unsloth-255-plain.log", {"starts-high": "info"}),
        ("mlx-examples-199-flat.log", {}),
        ("mlx-lm-236-oom-full-ft.log", {}),
    ],
)
def test_user_logs(cases: Path, name: str, symptoms: dict[str, str]) -> None:
    assert found(judge(loss_level, TrainingLog.read([cases / "logs" / name]))) == symptoms


def test_controls_have_no_error(cases: Path) -> None:
    for path in sorted((cases / "logs").glob("CONTROL-*")):
        assert errors(judge(loss_level, TrainingLog.read([path]))) == [], path.name


def test_what_cannot_be_judged(logs: LogWriter) -> None:
    middle = logs.losses([9.0, 8.9, 8.8], first=500)
    assert judge(loss_level, middle).status.value == "inconclusive"
    preference = logs.text("Iter 1: loss 9.9, chosen_r 0.1", "Iter 2: loss 9.9, chosen_r 0.1")
    assert judge(loss_level, preference).status.value == "skipped"
    assert judge(loss_level).status.value == "skipped"
