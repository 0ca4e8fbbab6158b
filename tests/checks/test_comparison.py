"""Differences from a healthy run, on real runs of the same model and data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.other_runs import ReferenceRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.run import Run
from tests import given
from tests.conftest import FIXTURES, RUNS, check_called

HEALTHY = RUNS / "healthy-ordinary"


def outcome(path: Path, against: Path | None = HEALTHY) -> Outcome:
    run = Run.discover([path], against=against, allow_model=False)
    (found,) = run_checks([check_called("comparison")], run)
    return found


def findings(found: Outcome) -> dict[str, Finding]:
    return {one.code.split(".")[1]: one for one in found.findings}


def test_runs_that_failed_differ_in_step_and_loss() -> None:
    found = findings(outcome(RUNS / "collapse-frequent-token"))
    assert set(found) == {"config-differs", "step-larger", "loss-higher"}
    assert found["step-larger"].measured["healthy_step"] == pytest.approx(3e-4 * 20)
    assert found["step-larger"].measured["ratio"] > 10
    assert "learning_rate" in found["config-differs"].measured["keys"]
    assert {"step-smaller", "loss-higher"} <= set(findings(outcome(RUNS / "rate-too-low")))


@pytest.mark.parametrize(
    ("factor", "symptom"), [(2.9, None), (3.1, "step-larger"), (0.32, "step-smaller")]
)
def test_the_step_is_compared_as_rate_times_scale(
    copied: Callable[[str], Path], factor: float, symptom: str | None
) -> None:
    folder = copied("healthy-ordinary")
    config = json.loads((folder / "adapter_config.json").read_text())
    config["learning_rate"] *= factor * 2
    config["lora_parameters"]["scale"] /= 2
    (folder / "adapter_config.json").write_text(json.dumps(config))
    for name in ("adapters.safetensors", "train.log"):
        (folder / name).unlink()
    steps = {name for name in findings(outcome(folder)) if name.startswith("step")}
    assert steps == ({symptom} if symptom else set())


@pytest.mark.parametrize(
    ("word", "other", "message"),
    [
        ("Epoch", "Epoch", "The loss up to epoch 9 is 3.000"),
        ("Step", "Iter", "The loss up to step 9 is 3.000"),
        ("Epoch", "Iter", ""),
    ],
)
def test_losses_are_compared_by_what_both_logs_count(
    tmp_path: Path, word: str, other: str, message: str
) -> None:
    def log(name: str, counted: str, loss: float) -> TrainingLog:
        path = tmp_path / name
        path.write_text("".join(f"{counted} {i}: train loss {loss}\n" for i in range(1, 10)))
        return TrainingLog.read([path])

    healthy = ReferenceRun("healthy", None, log("healthy.log", other, 1.0))
    found = given.outcome(check_called("comparison"), log("train.log", word, 3.0), healthy)
    assert found.status is not Status.CRASHED, found.reason
    messages = [one.message for one in found.findings]
    assert len(messages) == bool(message)
    assert all(one.startswith(message) for one in messages)
    assert ("comparison.loss-higher" in found.unsought) is not bool(message)


def test_where_a_run_was_written_to_is_no_difference(copied: Callable[[str], Path]) -> None:
    assert outcome(HEALTHY).status is Status.PASSED
    folder = copied("healthy-ordinary")
    config = json.loads((folder / "adapter_config.json").read_text())
    config.update(adapter_path="elsewhere", steps_per_report=1, save_every=7)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert outcome(folder).status is Status.PASSED


def test_nothing_to_compare() -> None:
    skipped = outcome(HEALTHY, against=None)
    assert skipped.status is Status.SKIPPED
    assert "--against" in skipped.reason
    assert outcome(FIXTURES / "data" / "geography").status is Status.INCONCLUSIVE
