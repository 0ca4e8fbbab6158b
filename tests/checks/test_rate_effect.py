"""What steps did: recorded runs, and curves on either side of each limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.run import Run
from tests.checks.data_evidence import BASE, config_of
from tests.checks.log_evidence import LogWriter, decay, finding, found, judge
from tests.conftest import RUNS, check_called, expected, run_names

rate_effect = check_called("rate-effect")
#: A hundredth of a rate that is sound for the fixtures' base model.
SMALL = 3e-6


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def outcome_of(folder: Path) -> Outcome:
    (outcome,) = run_checks([rate_effect], Run.discover([folder], allow_model=False))
    return outcome


def config(tmp_path: Path, rate: float = SMALL, **more: object):
    parameters = {"rank": 8, "dropout": 0.0, "scale": 20.0}
    return config_of(tmp_path, learning_rate=rate, lora_parameters=parameters, **more)


def straight(end: float, count: int = 15, start: float = 4.1) -> list[float]:
    """Losses that fall steadily to the last report."""
    return [float(value) for value in np.linspace(start, end, count)]


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
    ("losses", "symptoms"),
    [
        (straight(3.1), {"barely-learned": "error"}),
        # Learned a good part: low, and yet enough.
        (straight(1.5), {}),
        # Flat by the end: there was nothing more to learn at this rate.
        (decay(15, 4.1, 3.1, noise=0.0), {}),
        # Not more than the scatter of batches.
        ([4.1 + 0.3 * (-1) ** i - i / 100 for i in range(15)], {}),
        # Rising.
        (straight(4.5), {}),
    ],
)
def test_small_steps(
    tmp_path: Path, logs: LogWriter, losses: list[float], symptoms: dict[str, str]
) -> None:
    log = logs.losses(losses, {1: 4.15, 150: losses[-1]})
    outcome = judge(rate_effect, config(tmp_path), log, BaseModel.read(BASE))
    assert found(outcome) == symptoms


@pytest.mark.parametrize(("rate", "hit"), [(1.7e-5, True), (1.9e-5, False), (3e-4, False)])
def test_how_small_a_step_must_be(tmp_path: Path, logs: LogWriter, rate: float, hit: bool) -> None:
    log = logs.losses(straight(3.1), {1: 4.15})
    outcome = judge(rate_effect, config(tmp_path, rate), log, BaseModel.read(BASE))
    assert ("barely-learned" in found(outcome)) is hit


def test_an_unknown_size_makes_it_a_warning(tmp_path: Path, logs: LogWriter) -> None:
    log = logs.losses(straight(3.1), {1: 4.15})
    assert found(judge(rate_effect, config(tmp_path, 1e-7), log)) == {"barely-learned": "warning"}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"optimizer": "adafactor"}, Status.SKIPPED),
        ({"resume_adapter_file": "before.safetensors"}, Status.SKIPPED),
        ({"fine_tune_type": "full"}, Status.SKIPPED),
        ({"optimizer": "adamw"}, Status.FOUND),
    ],
)
def test_what_has_no_band(
    tmp_path: Path, logs: LogWriter, more: dict[str, str], status: Status
) -> None:
    log = logs.losses(straight(3.1), {1: 4.15})
    outcome = judge(rate_effect, config(tmp_path, **more), log, BaseModel.read(BASE))
    assert outcome.status is status


def test_missing_evidence(tmp_path: Path, logs: LogWriter) -> None:
    base = BaseModel.read(BASE)
    assert judge(rate_effect).status is Status.SKIPPED
    assert judge(rate_effect, config(tmp_path), base).status is Status.INCONCLUSIVE
    few = logs.losses(straight(3.1, count=8), {1: 4.15})
    assert judge(rate_effect, config(tmp_path), few, base).status is Status.INCONCLUSIVE
    assert judge(rate_effect, config(tmp_path, 1.0), base).status is Status.INCONCLUSIVE
