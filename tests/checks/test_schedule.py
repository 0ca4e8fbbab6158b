from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from tests.conftest import check_called

schedule = check_called("schedule")


def cosine(updates: int, warmup: int = 0, last: float = 0.0) -> dict[str, Any]:
    arguments = [3e-4, updates, last]
    return {"lr_schedule": {"name": "cosine_decay", "arguments": arguments, "warmup": warmup}}


@pytest.mark.parametrize(
    ("changes", "planned", "made"),
    [
        ({}, "", ""),
        ({"iters": 8, "grad_accumulation_steps": 16}, "no-update error", "no-update error"),
        ({"iters": 16, "grad_accumulation_steps": 16}, "", ""),
        (cosine(400, warmup=100), "", ""),
        (
            {**cosine(400, warmup=100), "grad_accumulation_steps": 8},
            "rate-not-reached error",
            "rate-not-reached warning",
        ),
        (cosine(400, warmup=20000), "rate-not-reached error", "rate-not-reached error"),
        (cosine(330), "", ""),
        (cosine(100), "rate-ends-early warning", "rate-ends-early warning"),
        (cosine(3), "rate-ends-early error", "rate-ends-early error"),
        (cosine(100, last=1e-5), "", ""),
    ],
)
def test_updates_and_their_rates(
    tmp_path: Path, changes: dict[str, Any], planned: str, made: str
) -> None:
    values = {"iters": 400, "learning_rate": 3e-4, **changes}
    for run, expected in (
        (Run.planned(planned_config(None, values)), planned),
        (Run.discover([copied_run(tmp_path, **values)], allow_model=False), made),
    ):
        found = schedule.run(run).findings
        codes = [f"{one.code.partition('.')[2]} {one.severity}" for one in found]
        assert codes == ([expected] if expected else [])


def test_the_sentence_counts_in_updates() -> None:
    values = {"iters": 400, "grad_accumulation_steps": 8, **cosine(400, warmup=100)}
    (finding,) = schedule.run(Run.planned(planned_config(None, values))).findings
    assert (
        "takes 100 updates, but the run makes only 50 (400 iterations, 8 an update)"
        in finding.message
    )
    assert finding.fix == "set lr_schedule.warmup to 5"
