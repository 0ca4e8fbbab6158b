"""What steps did: recorded runs, and curves on either side of each limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.run import Run
from tests.checks.data_evidence import BASE, config_of
from tests.checks.log_evidence import finding, found, judge
from tests.conftest import RUNS, check_called, expected, run_names

rate_effect = check_called("rate-effect")


def outcome_of(folder: Path) -> Outcome:
    (outcome,) = run_checks([rate_effect], Run.discover([folder], allow_model=False))
    return outcome


def config(tmp_path: Path, rate: float, **more: object):
    parameters = {"rank": 8, "dropout": 0.0, "scale": 20.0}
    return config_of(tmp_path, learning_rate=rate, lora_parameters=parameters, **more)


@pytest.mark.parametrize("name", [n for n in run_names() if expected(n)["verdict"] == "healthy"])
def test_healthy_runs_pass(name: str) -> None:
    assert outcome_of(RUNS / name).status is Status.PASSED


@pytest.mark.parametrize("name", ["collapse-frequent-token", "scale-too-large"])
def test_a_base_that_was_written_over(name: str) -> None:
    outcome = outcome_of(RUNS / name)
    assert found(outcome) == {"overwritten": "error"}
    measured = finding(outcome, "overwritten").measured
    assert measured["relative_update"] >= rate_effect.limits.overwritten
    assert measured["rate_times_scale"] > measured["guideline"][1]


@pytest.mark.parametrize("name", ["overfitting", "rate-too-high-garbled"])
def test_steps_within_the_band_are_not_judged_by_the_update(name: str) -> None:
    assert outcome_of(RUNS / name).status is Status.PASSED


@pytest.mark.parametrize(("size", "status"), [(1.85, Status.FOUND), (1.75, Status.PASSED)])
def test_the_update_against_the_weights(
    copied: Callable[[str], Path], size: float, status: Status
) -> None:
    # The update grows with the scale; the rate makes up for it, so that the step stays.
    recorded = finding(outcome_of(RUNS / "scale-too-large"), "overwritten")
    factor = size / recorded.measured["relative_update"]
    folder = copied("scale-too-large")
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text())
    values["lora_parameters"]["scale"] *= factor
    values["learning_rate"] /= factor
    values["model"] = str(BASE)
    path.write_text(json.dumps(values))
    outcome = outcome_of(folder)
    assert outcome.status is status
    if status is Status.FOUND:
        assert finding(outcome, "overwritten").measured["relative_update"] == pytest.approx(size)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"optimizer": "adafactor"}, Status.SKIPPED),
        ({"fine_tune_type": "full"}, Status.SKIPPED),
        # Without the base model's size no band is known, and without an adapter no update.
        ({"optimizer": "adamw"}, Status.INCONCLUSIVE),
    ],
)
def test_missing_evidence(tmp_path: Path, more: dict[str, str], status: Status) -> None:
    base = BaseModel.read(BASE)
    assert judge(rate_effect).status is Status.SKIPPED
    assert judge(rate_effect, config(tmp_path, 1.0, **more), base).status is status
    assert judge(rate_effect, config(tmp_path, 1e-6), base).status is not Status.INCONCLUSIVE
