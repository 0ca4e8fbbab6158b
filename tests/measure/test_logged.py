"""The losses that a log reports for the untouched model and for the saved one."""

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.logged_levels import logged_loss
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS

TRAIN = [3.0, 2.0, 1.0, 0.9, 0.8, 0.7]


def test_the_last_validation_is_the_saved_model(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).losses(TRAIN, {1: 4.0, 30: 1.5, 60: 0.9})
    logged = logged_loss(log)
    assert logged is not None
    assert (logged.before, logged.after, logged.iteration, logged.split) == (4.0, 0.9, 60, "valid")
    # One update came after it, at the pace of the thirty before.
    assert logged.drift == pytest.approx(0.6 / 30)


def test_a_checkpoint_is_compared_with_the_validation_nearest_to_it(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).losses(TRAIN, {1: 4.0, 30: 1.5, 60: 0.9})
    logged = logged_loss(log, saved_at=40)
    assert logged is not None
    assert (logged.after, logged.iteration) == (1.5, 30)
    assert logged.drift == pytest.approx(2.5 * 10 / 29)


def test_training_losses_serve_where_nothing_was_validated(tmp_path: Path) -> None:
    logged = logged_loss(LogWriter(tmp_path).losses(TRAIN))
    assert logged is not None
    assert (logged.before, logged.after, logged.split) == (None, 0.8, "train")
    assert logged.drift == pytest.approx(2.3)


def test_a_validation_before_the_first_update_says_nothing_of_the_end(tmp_path: Path) -> None:
    logged = logged_loss(LogWriter(tmp_path).losses(TRAIN, {1: 4.0}))
    assert logged is not None
    assert logged.split == "train"


def test_a_resumed_run_does_not_begin_with_the_base_model(tmp_path: Path) -> None:
    head = ["Loading fine-tuned weights from before/adapters.safetensors"]
    log = LogWriter(tmp_path).losses(TRAIN, {1: 1.0, 30: 0.9, 60: 0.8}, head=head)
    logged = logged_loss(log)
    assert logged is not None
    assert (logged.before, logged.after) == (None, 0.8)


def test_a_loss_that_is_not_finite_is_none() -> None:
    assert logged_loss(TrainingLog.read([RUNS / "rate-far-too-high-nan" / "train.log"])) is None


def test_a_real_log() -> None:
    logged = logged_loss(TrainingLog.read([RUNS / "healthy-ordinary" / "train.log"]))
    assert logged is not None
    assert (logged.before, logged.after, logged.iteration) == (4.15, 0.183, 600)
