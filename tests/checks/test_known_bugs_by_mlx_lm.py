"""Signatures of known bugs in runs that mlx_lm.lora itself makes here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlxdoctor.finding import Severity
from tests.checks.data_evidence import BASE, DATA
from tests.checks.known_bug_runs import findings

pytestmark = pytest.mark.slow


def train(folder: Path, **settings: Any) -> Path:
    """A run of a few iterations by `mlx_lm.lora`, with its log; it may fail."""
    config = {
        **{"model": str(BASE), "data": str(DATA / "geography"), "train": True, "seed": 1},
        **{"num_layers": 1, "batch_size": 2, "iters": 4, "val_batches": 1, "max_seq_length": 128},
        **{"learning_rate": 3e-4, "steps_per_report": 2, "adapter_path": str(folder)},
        **{"lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0}},
        **settings,
    }
    folder.mkdir()
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "mlx_lm", "lora", "--config", str(path)]
    with (folder / "train.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    return folder


def test_fewer_iterations_than_accumulation_steps_train_nothing(tmp_path: Path) -> None:
    found = findings(train(tmp_path / "run", grad_accumulation_steps=8))["leftover-accumulation"]
    assert found.severity is Severity.ERROR
    assert (found.measured["updates"], found.measured["left_over"]) == (0, 4)


def test_a_resumed_adapter_of_another_rank_takes_the_place_of_the_configured(
    tmp_path: Path,
) -> None:
    first = train(tmp_path / "first")
    narrower = {"rank": 4, "dropout": 0.0, "scale": 20.0}
    resume = str(first / "adapters.safetensors")
    second = train(tmp_path / "second", lora_parameters=narrower, resume_adapter_file=resume)
    found = findings(second)["resume-strict-false"]
    assert found.severity is Severity.ERROR
    assert (found.measured["configured_rank"], found.measured["resumed_rank"]) == (4, 8)
    assert "resume-strict-false" not in findings(
        train(tmp_path / "third", resume_adapter_file=resume)
    )


def test_dora_on_a_base_of_six_bits_breaks_off(tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    base = tmp_path / "six-bits"
    convert(str(BASE), str(base), quantize=True, q_bits=6, q_group_size=32)
    found = findings(train(tmp_path / "run", model=str(base), fine_tune_type="dora"), base=base)
    assert found["dora-odd-bits"].severity is Severity.ERROR
    assert found["dora-odd-bits"].measured["bits"] == (6,)
    assert "dora-odd-bits" not in findings(train(tmp_path / "lora", model=str(base)), base=base)


def test_dora_on_eight_bits_that_breaks_off_has_another_reason(tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    base = tmp_path / "eight-bits"
    convert(str(BASE), str(base), quantize=True, q_bits=8, q_group_size=32)
    folder = train(tmp_path / "run", model=str(base), fine_tune_type="dora")
    with (folder / "train.log").open("a") as log:
        log.write("Traceback (most recent call last):\nValueError: [matmul] shapes (4,8), (9,8)\n")
    assert "dora-odd-bits" not in findings(folder, base=base)
