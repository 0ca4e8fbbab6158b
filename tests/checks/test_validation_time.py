"""Validations that took no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, found, judge
from tests.conftest import LOGS, check_called

validation_time = check_called("validation-time")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def validated(logs: LogWriter, *seconds: str) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {at}0: Val loss 1.5, Val took {one}s\n"
            f"Iter {at}0: Train loss 1.{at}, It/sec 2.000"
            for at, one in enumerate(seconds, 1)
        )
    )


@pytest.mark.parametrize(
    ("seconds", "hit"),
    [
        (("0.000", "0.000"), True),
        (("0.000", "0.000", "0.7"), True),
        (("0.001", "0.001"), False),
        (("0.000", "0.7", "0.8"), False),
    ],
)
def test_no_time(logs: LogWriter, seconds: tuple[str, ...], hit: bool) -> None:
    said = found(judge(validation_time, validated(logs, *seconds)))
    assert said == ({"no-time": "warning"} if hit else {})


@pytest.mark.parametrize(("speed", "status"), [(0.1, "found"), (2.0, "inconclusive")])
def test_whole_seconds_tell_where_updates_are_slow(
    logs: LogWriter, speed: float, status: str
) -> None:
    rows = [
        f'{{"iteration": {at}, "train_loss": 1.5, "val_loss": 1.4, "val_time": 0, '
        f'"iterations_per_second": {speed}}}'
        for at in (10, 20, 30)
    ]
    logs.path = logs.path.with_suffix(".jsonl")
    assert judge(validation_time, logs.text(*rows)).status.value == status


def test_a_log_without_durations(logs: LogWriter) -> None:
    said = judge(validation_time, logs.text("Iter 10: Train loss 1.5, It/sec 1.0"))
    assert said.status.value == "inconclusive"


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem[:30])
def test_logs_of_users_took_some(path: Path) -> None:
    assert found(judge(validation_time, TrainingLog.read([path]))) == {}
