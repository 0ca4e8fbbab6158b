"""A planned run's steps: the model restored, batches timed, and settings that harm or hold back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx.utils import tree_flatten

import mlxdoctor
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.preflight.steps import TIMED, first_step, timed
from mlxdoctor.probe.probing import judge
from mlxdoctor.run import Run
from mlxdoctor.twin.held_back import highest_rate
from mlxdoctor.twin.prepared import prepared
from mlxdoctor.twin.rerun import recorded_settings
from mlxdoctor.verdict import Readiness
from tests.preflight.small_run import SOUND, small_run
from tests.twin.small import small_settings

pytestmark = pytest.mark.slow


def arrays(model: Any) -> dict[str, bytes]:
    """The bytes of every parameter."""
    return {name: np.array(one).tobytes() for name, one in tree_flatten(model.parameters())}


def test_timed_steps_leave_the_model_as_it_was(tmp_path: Path) -> None:
    run = small_run(tmp_path, max_seq_length=16)
    before = arrays(run.model)
    taken = timed(run, seconds=60)
    assert arrays(run.model) == before
    # Every batch of the second pass, whose shapes the first one compiled.
    assert len(taken.trained) >= TIMED
    assert taken.validated


def test_schedule_counts_with_its_highest_rate(tmp_path: Path) -> None:
    schedule = {"name": "cosine_decay", "arguments": [4e-3, 100], "warmup": 5}
    settings = small_settings(tmp_path, lr_schedule=schedule, iters=40)
    assert highest_rate(settings) == pytest.approx(4e-3)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("change", "code", "readiness"),
    [
        ({}, None, Readiness.READY),
        ({"learning_rate": 2e-3}, "reach.rate-too-high", Readiness.NOT_READY),
        ({"learning_rate": 2e-2}, "reach.rate-too-high", Readiness.NOT_READY),
        ({"learning_rate": 1e-7}, "reach.rate-too-low", Readiness.NOT_READY),
        (
            {"lora_parameters": {"rank": 8, "scale": 400.0, "dropout": 0.0}},
            "reach.scale-too-large",
            Readiness.NOT_READY,
        ),
        ({"optimizer": "sgd", "iters": 60}, "reach.setting-holds-back", Readiness.NOT_READY),
        # Two updates of 400 batches.
        ({"grad_accumulation_steps": 200}, "reach.setting-holds-back", Readiness.NOT_READY),
        # 400 such iterations end at 1.3 nats a token, about where the run with Adam does.
        ({"optimizer": "sgd"}, "reach.setting-holds-back", Readiness.READY_BUT),
        # Its first 30 updates do nothing, and the run has 400.
        (
            {"lr_schedule": {"name": "cosine_decay", "arguments": [3e-4, 400], "warmup": 40}},
            None,
            Readiness.READY,
        ),
    ],
)
def test_settings_are_held_against_what_the_rows_teach(
    change: dict[str, Any], code: str | None, readiness: Readiness
) -> None:
    report = mlxdoctor.preflight({**SOUND, **change}, steps=True, seconds=120)
    assert report.planned.readiness is readiness
    said = [finding.code for finding in report.findings if finding.code.startswith("reach.")]
    assert said == ([] if code is None else [code])
    if code is None:
        assert any(
            "As many updates with the run's own settings reach" in one
            for one in report.planned.facts
        )


def test_the_first_step_of_a_sound_run_has_no_warning(tmp_path: Path) -> None:
    """It is made with mlx-lm's own parts, and judged by the checks of a step."""
    plan = Run.planned(planned_config(None, {**SOUND, "adapter_path": str(tmp_path)}))
    run = prepared(recorded_settings(plan))
    before = arrays(run.model)
    step = first_step(run)
    assert step.planned
    assert arrays(run.model) == before
    severities = {finding.code: finding.severity.value for finding in judge(step).findings}
    assert set(severities.values()) == {"info"}
    # mlx-lm's own habit, which no configuration changes.
    assert "step-alignment.padding-target" in severities
