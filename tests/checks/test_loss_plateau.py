"""A loss that begins above a blind guess and settles without its input."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import LOGS, check_called

loss_plateau = check_called("loss-plateau")

#: A public run whose targets were permuted within each row.
PERMUTED = (
    *(18.9, 15.8, 14.1, 12.6, 9.8, 7.2, 6.7, 6.4, 6.0, 6.0, 6.1, 5.9, 6.2, 5.9, 5.9, 6.0),
    *(5.9, 5.9, 6.0, 5.8, 5.8, 5.9, 5.8, 5.9, 5.8, 5.8, 5.9, 5.8, 5.9, 5.8),
)


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def test_targets_that_do_not_follow_from_the_input(logs: LogWriter) -> None:
    said = judge(loss_plateau, logs.losses(PERMUTED))
    assert found(said) == {"without-the-input": "error"}
    assert finding(said, "without-the-input").measured["first_loss"] == 18.9


@pytest.mark.parametrize(("first", "hit"), [(14.2, True), (14.0, False)])
def test_the_start_must_be_far_above_a_blind_guess(
    logs: LogWriter, first: float, hit: bool
) -> None:
    said = judge(loss_plateau, logs.losses([first, *PERMUTED[1:]]))
    assert bool(found(said)) is hit


def test_a_broken_base_goes_on_learning(logs: LogWriter) -> None:
    falling = [18.0 * 0.93**at for at in range(30)]
    assert found(judge(loss_plateau, logs.losses(falling))) == {}


def test_a_low_end_is_no_plateau(logs: LogWriter) -> None:
    assert found(judge(loss_plateau, logs.losses([one - 2.6 for one in PERMUTED]))) == {}


def test_a_model_that_a_step_destroyed_was_sound_before(logs: LogWriter) -> None:
    assert found(judge(loss_plateau, logs.losses(PERMUTED, {1: 2.0}))) == {}


def test_few_reports_decide_nothing(logs: LogWriter) -> None:
    assert judge(loss_plateau, logs.losses(PERMUTED[::3])).status.value == "inconclusive"


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem[:30])
def test_logs_of_users_have_none(path: Path) -> None:
    assert found(judge(loss_plateau, TrainingLog.read([path]))) == {}
