"""A resumed run that did not take up what it resumed from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxdoctor.api import run_checks
from mlxdoctor.check import discover
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.run import Run
from tests.conftest import RUNS


def outcome(folder: Path) -> Outcome:
    checks = [one for one in discover() if one.name == "resume"]
    (found,) = run_checks(checks, Run.discover([folder], allow_model=False))
    return found


@pytest.fixture
def resumed(copied: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A healthy run that says it was resumed from the given tensors."""

    def make(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Path:
        folder = copied("healthy-ordinary")
        before = tmp_path / "before.safetensors"
        save_file(change(load_file(folder / "adapters.safetensors")), before)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["resume_adapter_file"] = str(before)
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    return make


def test_the_real_run_that_dropped_everything_is_found() -> None:
    found = outcome(RUNS / "resume-nothing-loaded")
    assert [one.code for one in found.findings] == ["resume.nothing-loaded"]
    assert found.findings[0].measured["loaded"] == 0


def test_the_same_tensors_pass(resumed: Callable[..., Path]) -> None:
    assert outcome(resumed(lambda tensors: tensors)).status is Status.PASSED


def test_fewer_tensors_pass_as_none_is_dropped(resumed: Callable[..., Path]) -> None:
    folder = resumed(lambda tensors: dict(list(tensors.items())[:4]))
    assert outcome(folder).status is Status.PASSED


def test_one_foreign_tensor_is_partly_loaded(resumed: Callable[..., Path]) -> None:
    folder = resumed(lambda tensors: tensors | {"other.lora_a": np.zeros((2, 2), np.float32)})
    found = outcome(folder)
    assert [one.code for one in found.findings] == ["resume.partly-loaded"]
    assert found.findings[0].where == "other.lora_a"


def test_a_run_that_was_not_resumed_is_skipped() -> None:
    found = outcome(RUNS / "healthy-ordinary")
    assert (found.status, found.reason) == (Status.SKIPPED, "the run was not resumed")


def test_a_file_that_is_gone_is_missing_with_its_name(
    resumed: Callable[..., Path], tmp_path: Path
) -> None:
    folder = resumed(lambda tensors: tensors)
    shutil.move(tmp_path / "before.safetensors", tmp_path / "elsewhere")
    found = outcome(folder)
    assert found.status is Status.SKIPPED
    assert "before.safetensors" in found.reason


@pytest.mark.parametrize(("asked", "codes"), [(8, []), (4, ["resume.rank-differs"])])
def test_a_rank_other_than_the_configuration_asks_for(
    resumed: Callable[..., Path], asked: int, codes: list[str]
) -> None:
    """mlx-lm trains the file's rank then, and saves it beside the other number."""
    folder = resumed(lambda tensors: tensors)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["lora_parameters"]["rank"] = asked
    path.write_text(json.dumps(config))
    found = outcome(folder).findings
    assert [one.code for one in found] == codes
    for one in found:
        assert (one.measured["resumed_rank"], one.measured["rank"]) == (8, 4)
        assert "Set lora_parameters.rank to 8" in one.fix
