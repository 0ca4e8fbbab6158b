"""Whether saved states lie within reach of each other, on real runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxdoctor.api import run_checks
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.conftest import RUNS, check_called, run_names

CODE = "reachable-update.beyond-the-steps"
MASKED = "healthy-masked-warmup"


def outcome(folder: Path) -> Outcome:
    run = Run.discover([folder], allow_model=False)
    (found,) = run_checks([check_called("reachable-update")], run)
    assert found.status is not Status.CRASHED, found.reason
    return found


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def scale(file: Path, factor: float) -> None:
    save_file({name: value * np.float32(factor) for name, value in load_file(file).items()}, file)


@pytest.mark.parametrize("name", run_names())
def test_the_files_of_every_run_are_its_own(name: str) -> None:
    assert outcome(RUNS / name).findings == ()


@pytest.mark.parametrize(
    ("name", "factor", "found"),
    [
        ("healthy-short-low-rate", 1.0, False),
        ("healthy-short-low-rate", 0.4, False),
        ("healthy-short-low-rate", 0.3, True),
        ("healthy-ordinary", 0.15, False),
        ("healthy-ordinary", 0.08, True),
        (MASKED, 0.15, False),
        (MASKED, 0.08, True),
    ],
)
def test_a_part_of_the_rate_that_was_used(
    copied: Callable[[str], Path], name: str, factor: float, found: bool
) -> None:
    folder = copied(name)
    stated = json.loads((folder / "adapter_config.json").read_text())
    rate = float(stated.get("learning_rate") or 0.0) * factor
    schedule = stated.get("lr_schedule")
    if schedule is not None:
        first, *rest = schedule["arguments"]
        schedule = {**schedule, "arguments": [first * factor, *rest]}
    change(folder, learning_rate=rate, lr_schedule=schedule)
    said = outcome(folder)
    assert said.status is (Status.FOUND if found else Status.PASSED)
    for one in said.findings:
        assert (one.code, one.severity) == (CODE, Severity.WARNING)
        assert float(one.measured["moved"]) > float(one.measured["bound"])  # type: ignore[arg-type]


def test_a_schedule_that_was_dropped(copied: Callable[[str], Path]) -> None:
    """The first save is too far off for a warm-up that lasts beyond it."""
    folder = copied("rate-too-low")
    for warmup, found in ((50, ()), (400, (CODE,))):
        decay = {"name": "cosine_decay", "arguments": [1e-8, 600], "warmup": warmup}
        change(folder, lr_schedule=decay)
        findings = outcome(folder).findings
        assert tuple(one.code for one in findings) == found
    assert findings[0].measured["updates"] == 100
    assert "the start" in findings[0].message


def test_a_final_file_that_was_scaled_afterwards(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    scale(folder / "adapters.safetensors", 1.05)
    (found,) = outcome(folder).findings
    # The last numbered save and the final file are of the same iteration.
    assert (found.measured["updates"], found.measured["stretches_beyond"]) == (0, 1)
    assert "the final file" in found.message


def test_the_bound_is_that_of_adam(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    change(folder, learning_rate=1e-6)
    (found,) = outcome(folder).findings
    ratio = 0.9**2 / 0.999
    steps = [
        0.1 / math.sqrt(0.001) * math.sqrt((1 - ratio**t) / (1 - ratio)) for t in range(1, 601)
    ]
    bounds = [1e-6 * sum(steps[:300]), 1e-6 * sum(steps[300:])]
    assert any(
        float(found.measured["bound"]) == pytest.approx(one, rel=1e-3)  # type: ignore[arg-type]
        for one in bounds
    )


def test_an_update_is_made_of_several_iterations(copied: Callable[[str], Path]) -> None:
    """With three batches an update there are too few updates for these files."""
    folder = copied("healthy-short-low-rate")
    change(folder, grad_accumulation_steps=2)
    assert outcome(folder).status is Status.PASSED
    change(folder, grad_accumulation_steps=3)
    (found,) = outcome(folder).findings
    assert (found.measured["updates"], found.onset) == (40, 120)


def test_weight_decay_adds_to_the_way(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    bounds = []
    for optimizer in ("adam", "adamw"):
        change(
            folder,
            **{"learning_rate": 1e-5, "optimizer": optimizer},
            optimizer_config={"adamw": {"weight_decay": 0.1}},
        )
        (found,) = outcome(folder).findings
        bounds.append(float(found.measured["bound"]))  # type: ignore[arg-type]
    assert bounds[0] < bounds[1] < 1.01 * bounds[0]


def resume(folder: Path, file: Path) -> Path:
    change(folder, resume_adapter_file=str(file))
    return folder


def test_the_way_from_the_adapter_that_was_resumed(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    """A run's last save resumed from its first, and from one that is far off."""
    folder = copied("healthy-ordinary")
    first = folder / "0000300_adapters.safetensors"
    near, far = tmp_path / "near.safetensors", tmp_path / "far.safetensors"
    first.rename(near)
    save_file(load_file(near), far)
    scale(far, -20.0)
    assert outcome(resume(folder, near)).status is Status.PASSED
    (found,) = outcome(resume(folder, far)).findings
    assert "the adapter it was resumed from" in found.message


def test_a_file_that_was_resumed_from_and_overwritten_is_no_evidence(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("healthy-ordinary")
    said = outcome(resume(folder, folder / "adapters.safetensors"))
    assert said.status is Status.INCONCLUSIVE
    assert "wrote over itself" in said.reason


@pytest.mark.parametrize("optimizer", ["adafactor", "sgd", "muon"])
def test_other_optimisers_have_no_such_bound(copied: Callable[[str], Path], optimizer: str) -> None:
    folder = copied("healthy-ordinary")
    change(folder, optimizer=optimizer, learning_rate=1e-9)
    said = outcome(folder)
    assert (said.status, said.findings) == (Status.SKIPPED, ())


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer_config": {"adam": {"betas": [0.99, 0.9]}}},
        {"optimizer_config": {"adam": {"betas": "fast"}}},
        {"optimizer_config": {"adam": {"betas": ["fast", 0.9]}}},
        {"optimizer": "adamw", "optimizer_config": {"adamw": {"weight_decay": "some"}}},
        {"iters": 10**12},
        {"lr_schedule": {"name": "unheard-of", "arguments": [1e-9]}},
        {"iters": 100},
    ],
)
def test_what_has_no_bound_is_inconclusive(
    copied: Callable[[str], Path], values: dict[str, Any]
) -> None:
    folder = copied("healthy-ordinary")
    change(folder, **values)
    assert outcome(folder).status is Status.INCONCLUSIVE


def test_a_configuration_without_training_is_skipped(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    (folder / "adapter_config.json").write_text(
        json.dumps({"num_layers": 4, "lora_parameters": {"rank": 8, "scale": 20.0}})
    )
    assert outcome(folder).status is Status.SKIPPED


def test_no_adapter_at_all(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert outcome(folder).status is Status.INCONCLUSIVE
