"""A throughput that falls for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import LOGS, check_called

memory = check_called("memory")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def speeds(logs: LogWriter, *values: float, peak: float = 30.0) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}0: Train loss 2.0, Tokens/sec {one}, Peak mem {peak} GB"
            for i, one in enumerate(values, 1)
        )
    )


@pytest.mark.parametrize(
    ("late", "peak", "symptoms"),
    [(30.0, 30.0, {"slowed": "warning"}), (40.0, 30.0, {}), (30.0, 0.5, {})],
)
def test_slowed(logs: LogWriter, late: float, peak: float, symptoms: dict[str, str]) -> None:
    log = speeds(logs, 5.0, *[100.0] * 10, *[late] * 10, peak=peak)
    outcome = judge(memory, log)
    assert found(outcome) == symptoms
    if symptoms:
        assert finding(outcome, "slowed").onset == 120


def test_single_slow_reports_do_not_count(logs: LogWriter) -> None:
    assert found(judge(memory, speeds(logs, *([100.0, 100.0, 10.0] * 8)))) == {}


def test_too_little_to_tell(logs: LogWriter) -> None:
    assert judge(memory, speeds(logs, *[100.0] * 5)).status.value == "inconclusive"
    mixtral = TrainingLog.read([LOGS / "mlx-examples-557-a-mixtral-4bit.log"])
    assert judge(memory, mixtral).status.value == "inconclusive"
    assert judge(memory).status.value == "skipped"
