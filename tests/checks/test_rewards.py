"""Rewards and preferences in logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, found, judge
from tests.conftest import check_called

rewards = check_called("rewards")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def group_log(logs: LogWriter, earned: list[float]) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}: Train loss 0.000, Total rewards mean {one:.3f}, Total rewards std 0.100, "
            "KL 0.000"
            for i, one in enumerate(earned, 1)
        )
    )


def pair_log(logs: LogWriter, margins: list[float], loss: float = 0.693) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}: Train loss {loss:.3f}, Chosen reward {one:.3f}, Rejected reward 0.000, "
            "It/sec 1.0"
            for i, one in enumerate(margins, 1)
        )
    )


@pytest.mark.parametrize(
    ("earned", "symptoms"),
    [
        ([0.0] * 10, {"all-zero": "error"}),
        ([0.0] * 9, {"all-zero": "warning"}),
        ([0.0] * 2, {}),
        ([0.0] * 9 + [0.1], {}),
    ],
)
def test_rewards_of_zero(logs: LogWriter, earned: list[float], symptoms: dict[str, str]) -> None:
    assert found(judge(rewards, group_log(logs, earned))) == symptoms


@pytest.mark.parametrize(
    ("margins", "symptoms"),
    [
        ([0.0, 0.009, -0.009, *[0.0] * 7], {"not-told-apart": "warning"}),
        ([0.0] * 9, {}),
        ([0.0] * 9 + [0.02], {}),
    ],
)
def test_pairs_that_stay_equal(
    logs: LogWriter, margins: list[float], symptoms: dict[str, str]
) -> None:
    assert found(judge(rewards, pair_log(logs, margins))) == symptoms


def test_pairs_told_apart_are_learned_on_validation_rows_only(logs: LogWriter) -> None:
    (seen,) = judge(rewards, pair_log(logs, [0.0, 0.1, 0.3], 0.6)).seen
    assert not seen.learned
    held_out = logs.text(
        *(
            f'{{"step": {i}, "loss": 0.6, "eval_loss": 0.6, "eval_rewards/margins": {margin}}}'
            for i, margin in enumerate([0.0, 0.2, 0.4], 1)
        )
    )
    seen = judge(rewards, held_out).seen[0]
    assert seen.learned
    assert "from 0.000 to 0.400 on validation rows" in seen.message


def test_missing_evidence(logs: LogWriter) -> None:
    ordinary = judge(rewards, logs.losses([2.0, 1.0]))
    assert (ordinary.status.value, ordinary.arises) == ("skipped", False)
    assert judge(rewards).status.value == "skipped"
    header = logs.text("Training mode: ORPO", "Iter 1: Train loss 2.0, KL 0.1")
    assert judge(rewards, header).status.value == "inconclusive"
