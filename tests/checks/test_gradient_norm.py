"""Gradient norms in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import LOGS, RUNS, check_called

gradient_norm = check_called("gradient-norm")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def norms(logs: LogWriter, *values: str) -> TrainingLog:
    return logs.text(
        *(f"Iter {i}0: Train loss 2.0, grad_norm {one}" for i, one in enumerate(values, 1))
    )


@pytest.mark.parametrize(
    ("values", "symptoms"),
    [
        (("0.0", "0.0", "0.0"), {"zero": "error"}),
        (("0.0", "0.0", "1.0", "1.0"), {"zero": "error"}),
        (("0.0", "0.0", "1.0", "1.0", "1.0"), {}),
        (("0.0", "1e-9"), {}),
        (("nan", "nan", "nan"), {"non-finite-throughout": "error"}),
        (("1.0", "inf", "1.0", "2.0"), {"non-finite": "warning"}),
        (("1.0", "2.0"), {}),
    ],
)
def test_values(logs: LogWriter, values: tuple[str, ...], symptoms: dict[str, str]) -> None:
    assert found(judge(gradient_norm, norms(logs, *values))) == symptoms


def test_a_run_whose_gradients_are_blocked() -> None:
    log = TrainingLog.read([RUNS / "gradients-blocked" / "train.jsonl"])
    one = finding(judge(gradient_norm, log), "zero")
    assert one.measured["zero_reports"] == one.measured["reports"]


def test_skipped_batches(logs: LogWriter) -> None:
    few = logs.text(
        "Iter 40: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched",
        "Iter 400: Train loss 1.2680, LR 1.950e-06, grad_norm 3.5, skipped 1",
    )
    one = finding(judge(gradient_norm, few), "skipped-batches")
    assert (one.severity.value, one.onset, one.measured["skipped"]) == ("info", 40, 1)
    many = logs.text("Iter 40: Train loss 1.2, grad_norm 3.5, skipped 10")
    assert found(judge(gradient_norm, many)) == {"skipped-batches": "warning"}
    none = logs.text("Iter 40: Train loss 1.2, grad_norm 3.5, skipped 0")
    assert judge(gradient_norm, none).status.value == "passed"


def test_without_norms_the_question_does_not_arise(logs: LogWriter) -> None:
    assert judge(gradient_norm, logs.losses([2.0, 1.0])).status.value == "skipped"


def test_user_logs() -> None:
    def of(name: str) -> dict[str, str]:
        return found(judge(gradient_norm, TrainingLog.read([LOGS / name])))

    assert of("torch-MiniCPM-V-212-loss0-gradnan.log") == {"non-finite-throughout": "error"}
    assert of("torch-gemma_pytorch-24-intermittent-nan.log") == {"non-finite": "warning"}
    assert of("mlx-lm-326-grad-debug.log") == {}
    assert of("CONTROL-torch-transformers-35438-ga1.log") == {}


def test_norms_that_are_not_finite_to_the_end(logs: LogWriter) -> None:
    outcome = judge(gradient_norm, norms(logs, *["4.2"] * 89, *["nan"] * 11))
    one = finding(outcome, "non-finite")
    assert one.severity.value == "error"
    assert "11 of 100 reports, the last 11 of them (from iteration 900 on)" in one.message
    few = judge(gradient_norm, norms(logs, *["4.2"] * 97, *["nan"] * 3))
    assert finding(few, "non-finite").severity.value == "warning"


@pytest.mark.parametrize(
    ("values", "exploded"),
    [
        ([4.2] * 8 + [5044.0] + [4.2] * 3 + [1.8e8], True),
        ([4.2] * 8 + [421.0], True),
        ([4.2] * 8 + [419.0], False),
        # A norm that is harmless, one at the start, and too few to tell what is usual.
        ([0.1] * 8 + [90.0], False),
        ([5044.0] + [4.2] * 12, False),
        ([4.2] * 6 + [5044.0], False),
    ],
)
def test_norms_that_explode_and_stay_finite(
    logs: LogWriter, values: list[float], exploded: bool
) -> None:
    outcome = judge(gradient_norm, norms(logs, *map(str, values)))
    assert found(outcome) == ({"exploded": "warning"} if exploded else {})


def test_most_batches_skipped(logs: LogWriter) -> None:
    log = logs.text("Iter 39: Train loss 4.2, grad_norm 3.5, skipped 26")
    assert found(judge(gradient_norm, log)) == {"skipped-batches": "error"}
