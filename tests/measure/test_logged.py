from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.logged_levels import logged_loss
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS

TRAIN = [3.0, 2.0, 1.0, 0.9, 0.8, 0.7]
VAL = {1: 4.0, 30: 1.5, 60: 0.9}
RESUMED = ["Loading fine-tuned weights from before/adapters.safetensors"]


@pytest.mark.parametrize(
    ("val", "head", "levels", "split", "drift"),
    [
        # The last validation is the saved model; one update came after it, at the pace before.
        (VAL, [], (0.9, 60), "valid", 0.6 / 30),
        # Training losses serve where nothing was validated, or only before the first update.
        ({}, [], (0.8, 60), "train", 2.3),
        ({1: 4.0}, [], (0.8, 60), "train", 2.3),
        # A resumed run does not begin with the base model.
        ({1: 1.0, 30: 0.9, 60: 0.8}, RESUMED, (0.8, 60), "valid", 0.1 / 30),
    ],
)
def test_levels(
    tmp_path: Path,
    *,
    val: dict[int, float],
    head: list[str],
    levels: tuple[float, int],
    split: str,
    drift: float,
) -> None:
    logged = logged_loss(LogWriter(tmp_path).losses(TRAIN, val, head=head))
    assert (logged.after, logged.iteration) == levels
    assert (logged.split, logged.drift) == (split, pytest.approx(drift))


def test_real_logs() -> None:
    logged = logged_loss(TrainingLog.read([RUNS / "healthy-ordinary" / "train.log"]))
    assert (logged.after, logged.iteration) == (0.183, 600)
    # A loss that is not finite is none.
    assert logged_loss(TrainingLog.read([RUNS / "rate-far-too-high-nan" / "train.log"])) is None
