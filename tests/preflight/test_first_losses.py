"""The first report of a run, made before the run: it is the run's own."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.preflight.small_run import small_run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "grad_accumulation_steps": 2,
            "lora_parameters": {"rank": 4, "dropout": 0.1, "scale": 10.0},
            "lr_schedule": {"name": "cosine_decay", "arguments": [1e-3, 20], "warmup": 5},
        },
    ],
)
def test_mlx_lm_reports_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    from mlx_lm import lora

    from mlxdoctor.preflight.configuration import planned_config
    from mlxdoctor.preflight.first_losses import first_report
    from mlxdoctor.preflight.prepared import prepared_run, settings_of

    values = {
        "model": str(FIXTURES / "base"),
        "data": str(FIXTURES / "data" / "geography"),
        "adapter_path": str(tmp_path),
        "train": True,
        "num_layers": 2,
        "batch_size": 2,
        "iters": 13,
        "learning_rate": 1e-3,
        "steps_per_report": 6,
        "val_batches": 1,
        **changes,
    }
    told = first_report(prepared_run(settings_of(planned_config(None, values))), math.inf)
    assert told is not None
    assert told.iteration == 12
    losses: dict[int, float] = {}

    def noted(info: dict[str, Any]) -> None:
        losses[info["iteration"]] = info["train_loss"]

    notes = SimpleNamespace(on_train_loss_report=noted, on_val_loss_report=lambda _: None)
    monkeypatch.setattr(lora, "get_reporting_callbacks", lambda *_args, **_kwargs: notes)
    lora.run(SimpleNamespace(**{**lora.CONFIG_DEFAULTS, **values}))
    assert told.loss == pytest.approx(losses[12], rel=1e-4)


def test_the_model_is_handed_back_and_time_is_kept(tmp_path: Path) -> None:
    from mlxdoctor.preflight.first_losses import first_report
    from mlxdoctor.preflight.rate_trials import fingerprint

    run = small_run(tmp_path, steps_per_report=4, iters=10, learning_rate=1e-2)
    before = fingerprint(run.model)
    told = first_report(run, math.inf)
    assert told is not None
    assert told.iteration == 8
    assert fingerprint(run.model) == before
    assert first_report(run, math.inf) == told
    assert first_report(run, 0.0) is None
    assert first_report(small_run(tmp_path, steps_per_report=20, iters=10), math.inf) is None
