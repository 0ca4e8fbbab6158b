"""Logged rates against the configured ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import config_of
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called

learning_rate_schedule = check_called("learning-rate-schedule")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def rates(logs: LogWriter, *values: float) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}0: Train loss 2.0, Learning Rate {one:.3e}, It/sec 1.0"
            for i, one in enumerate(values, 1)
        )
    )


def cosine(steps: int, warmup: int = 0) -> dict[str, object]:
    return {"lr_schedule": {"name": "cosine_decay", "arguments": [1e-4, steps], "warmup": warmup}}


@pytest.mark.parametrize(
    ("settings", "symptoms"),
    [
        (cosine(100), {"ignored": "warning"}),
        (cosine(100_000), {}),
        (cosine(100_000, warmup=30), {"ignored": "warning"}),
        (cosine(100_000, warmup=15), {}),
        ({"learning_rate": 1e-4}, {}),
        ({"learning_rate": 1.005e-4}, {}),
        ({"learning_rate": 2e-4}, {"other-rate": "warning"}),
        ({}, {}),
    ],
)
def test_a_constant_rate(
    logs: LogWriter, tmp_path: Path, settings: dict[str, object], symptoms: dict[str, str]
) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", **settings)
    outcome = judge(learning_rate_schedule, rates(logs, *[1e-4] * 10), config)
    assert found(outcome) == symptoms
    if "ignored" in symptoms:
        assert finding(outcome, "ignored").measured["logged"] == 1e-4


def test_a_rate_that_moves_is_right(logs: LogWriter, tmp_path: Path) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", **cosine(100))
    moving = rates(logs, *(1e-4 * (1 - i / 20) for i in range(10)))
    assert judge(learning_rate_schedule, moving, config).status.value == "passed"


def test_a_negative_rate_that_was_asked_for_is_not_another_one(
    logs: LogWriter, tmp_path: Path
) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", learning_rate=-1e-4)
    assert found(judge(learning_rate_schedule, rates(logs, *[-1e-4] * 10), config)) == {}


def test_missing_evidence(logs: LogWriter, tmp_path: Path) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", **cosine(100))
    assert judge(learning_rate_schedule, logs.losses([2.0]), config).status.value == "skipped"
    without = judge(learning_rate_schedule, rates(logs, 1e-4))
    assert found(without) == {}
    assert set(without.unsought) == {
        "learning-rate-schedule.ignored",
        "learning-rate-schedule.other-rate",
    }
    few = judge(learning_rate_schedule, rates(logs, 1e-4), config)
    assert few.status.value == "inconclusive"


def losses_at(logs: LogWriter, rates: list[float], losses: list[float]) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}0: Train loss {loss:.3f}, Learning Rate {rate:.3e}, It/sec 1.0"
            for i, (rate, loss) in enumerate(zip(rates, losses, strict=True), 1)
        )
    )


@pytest.mark.parametrize(
    ("values", "symptoms"),
    [
        ([0.0] * 5, {"zero": "error"}),
        # A warm-up from 0, and a decay to 0 that ends there.
        ([0.0, 0.0, *[1e-5] * 20], {}),
        ([2e-5] * 40 + [0.0] * 2, {}),
        ([2e-5] * 30 + [0.0] * 10, {"zero-to-the-end": "warning"}),
        ([2e-5 * (20 - i) / 20 for i in range(20)] + [0.0] * 10, {"zero-to-the-end": "info"}),
        # Four decimals show a small rate as 0.
        ([2e-4] * 5 + [1e-4] * 5 + [0.0] * 10, {"zero-to-the-end": "info"}),
    ],
)
def test_rates_of_zero_need_no_configuration(
    logs: LogWriter, values: list[float], symptoms: dict[str, str]
) -> None:
    log = losses_at(logs, values, [2.0] * len(values))
    assert found(judge(learning_rate_schedule, log)) == symptoms


def test_a_loss_that_fell_had_a_rate(logs: LogWriter) -> None:
    falling = [3.0 - 0.1 * i for i in range(12)]
    assert found(judge(learning_rate_schedule, losses_at(logs, [0.0] * 12, falling))) == {}
