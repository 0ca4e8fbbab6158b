"""The first step of a planned run, made with mlx-lm's own parts and judged by the step checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.preflight.small_run import small_run

pytestmark = pytest.mark.slow


def codes(run: Any) -> dict[str, str]:
    """Code -> severity of what the checks of a step find in a run's first one."""
    from mlxdoctor.preflight.steps import first_step
    from mlxdoctor.probe.probing import judge

    return {one.code: one.severity.value for one in judge(first_step(run)).findings}


def test_sound_run_has_no_warning(tmp_path: Path) -> None:
    from mlxdoctor.preflight.configuration import planned_config
    from mlxdoctor.preflight.steps import prepared_run

    values = {
        "model": str(FIXTURES / "base"),
        "data": str(FIXTURES / "data" / "geography"),
        "adapter_path": str(tmp_path),
        "num_layers": 4,
        "learning_rate": 3e-4,
    }
    found = codes(prepared_run(planned_config(None, values)))
    assert set(found.values()) == {"info"}
    # mlx-lm's own habit, which no configuration changes.
    assert "step-alignment.padding-target" in found


def test_model_is_put_back(tmp_path: Path) -> None:
    from mlxdoctor.preflight.steps import first_step
    from tests.preflight.test_rates import arrays

    run = small_run(tmp_path)
    before = arrays(run.model)
    assert first_step(run).planned
    assert arrays(run.model) == before
