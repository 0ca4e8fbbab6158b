"""Spikes and bursts: a loss that is thrown off its course."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, decay, finding, found, judge
from tests.conftest import LOGS, RUNS, check_called, run_names

loss_stability = check_called("loss-stability")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def test_a_real_burst_is_found_with_its_onset() -> None:
    outcome = judge(
        loss_stability, TrainingLog.read([RUNS / "rate-too-high-garbled" / "train.log"])
    )
    assert found(outcome) == {"burst": "warning"}
    burst = finding(outcome, "burst")
    assert burst.onset == 130
    assert burst.measured["peak"] == pytest.approx(2.980)


@pytest.mark.parametrize("name", [one for one in run_names() if one.startswith("healthy")])
def test_healthy_runs_have_no_complaint(name: str) -> None:
    (path,) = (RUNS / name).glob("train.*")
    assert found(judge(loss_stability, TrainingLog.read([path]))) == {}


def test_the_spike_of_a_real_log() -> None:
    log = TrainingLog.read([LOGS / "torch-gemma_pytorch-24-intermittent-nan.log"])
    assert found(judge(loss_stability, log)) == {"spiked": "warning"}


@pytest.mark.parametrize(
    ("height", "symptoms"),
    [(40.0, {"spiked": "warning"}), (6.0, {"spiked": "info"}), (2.4, {})],
)
def test_spikes_that_recovered(logs: LogWriter, height: float, symptoms: dict[str, str]) -> None:
    train = decay(40, 2.2, 1.8)
    train[20] = height
    log = logs.losses(train, {1: 2.3})
    outcome = judge(loss_stability, log)
    assert found(outcome) == symptoms
    if symptoms:
        assert finding(outcome, "spiked").onset == 210


def test_a_steep_fall_is_no_spike(logs: LogWriter) -> None:
    log = logs.losses([2.6, 0.84, 0.3, 0.28, 0.27, 0.25, 0.25, 0.24, 0.24, 0.23, 0.2], {1: 4.1})
    assert "spiked" not in found(judge(loss_stability, log))


def test_scatter_of_single_rows_is_no_spike(logs: LogWriter) -> None:
    log = logs.losses(decay(200, 3.0, 1.0, noise=0.35), {1: 3.0}, every=1)
    assert found(judge(loss_stability, log)) == {}


@pytest.mark.parametrize(
    ("reports", "height", "symptoms"),
    [
        (6, 2.5, {"burst": "warning"}),
        (4, 2.5, {"burst": "warning"}),
        (3, 2.5, {}),
        (6, 2.05, {}),
    ],
)
def test_a_burst_is_long_and_high(
    logs: LogWriter, reports: int, height: float, symptoms: dict[str, str]
) -> None:
    train = decay(40, 2.2, 1.8, noise=0.02)
    train[20 : 20 + reports] = [height] * reports
    assert found(judge(loss_stability, logs.losses(train))) == symptoms


def test_a_rise_at_the_start_is_no_burst(logs: LogWriter) -> None:
    log = logs.losses([3.0, 3.3, 3.8, 4.0, 3.9, 3.5, *decay(30, 3.0, 1.0)])
    assert found(judge(loss_stability, log)) == {}


def test_few_losses_are_inconclusive(logs: LogWriter) -> None:
    assert judge(loss_stability, logs.losses([3.0, 2.0, 9.0])).status.value == "inconclusive"
