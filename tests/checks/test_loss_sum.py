"""A loss that no mean over targets can have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import LOGS, check_called

loss_sum = check_called("loss-sum")
loss_level = check_called("loss-level")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def config(folder: Path, **values: object) -> TrainingConfig:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(values))
    return TrainingConfig.read(path)


def counted(logs: LogWriter, *losses: float, targets: int = 800) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {at}0: Train loss {one}, It/sec 1.0, Trained Tokens {at * 10 * targets}"
            for at, one in enumerate(losses, 1)
        )
    )


def test_the_log_counts_what_was_summed_over(logs: LogWriter) -> None:
    said = judge(loss_sum, counted(logs, 2080.0, 1800.0, 1500.0, 1300.0))
    assert found(said) == {"no-mean": "error"}
    one = finding(said, "no-mean")
    assert one.measured["divisor"] == 800
    assert one.measured["mean"] == pytest.approx(2.6)
    assert "Divided by the 800 targets in a batch it is a usual 2.60" in one.message


def test_a_sum_over_the_rows_of_a_batch(logs: LogWriter, tmp_path: Path) -> None:
    log = logs.losses([90.0, 80.0, 70.0, 60.0])
    said = judge(loss_sum, log, config(tmp_path, batch_size=32))
    assert finding(said, "no-mean").measured["divisor"] == 32


def test_without_a_divisor_it_is_a_warning(logs: LogWriter) -> None:
    assert found(judge(loss_sum, logs.losses([90.0, 80.0, 70.0]))) == {"no-mean": "warning"}


@pytest.mark.parametrize(("first", "hit"), [(50.0, False), (51.0, True)])
def test_what_a_mean_may_be(logs: LogWriter, first: float, hit: bool) -> None:
    assert bool(found(judge(loss_sum, logs.losses([first] * 4)))) is hit


def test_one_report_of_a_destroyed_model_is_no_sum(logs: LogWriter) -> None:
    assert found(judge(loss_sum, logs.losses([90.0, 12.0, 9.0, 8.0, 8.0]))) == {}


def test_a_validation_before_training_anchors_the_mean(logs: LogWriter, tmp_path: Path) -> None:
    log = logs.losses([90.0, 80.0, 70.0, 60.0], {1: 1.0})
    said = judge(loss_sum, log, config(tmp_path, batch_size=32))
    assert finding(said, "no-mean").measured["divisor"] is None


def test_a_sum_has_no_level(logs: LogWriter) -> None:
    said = judge(loss_level, counted(logs, 2080.0, 1800.0, 1500.0, 1300.0))
    assert found(said) == {}
    assert "loss-level.stays-at-chance" in said.unsought


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem[:30])
def test_logs_of_users_have_means(path: Path) -> None:
    assert found(judge(loss_sum, TrainingLog.read([path]))) == {}
