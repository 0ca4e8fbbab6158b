"""The configuration of an adapter that is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from tests.conftest import FIXTURES, RUNS

RUN = RUNS / "healthy-ordinary"
CODE = "adapter-file.absent"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration whose base model and rows are at hand."""
    config = json.loads((RUN / "adapter_config.json").read_text())
    config |= {"model": str(FIXTURES / "base"), "data": str(FIXTURES / "data" / "geography")}
    made = tmp_path / "run"
    made.mkdir()
    (made / "adapter_config.json").write_text(json.dumps(config))
    return made


def codes(folder: Path) -> list[str]:
    report = diagnose([folder], allow_model=False)
    return [one.code for one in report.findings if one.severity == "error"]


def test_nothing_but_a_configuration(folder: Path) -> None:
    assert codes(folder) == [CODE]


def test_with_the_weights(folder: Path) -> None:
    shutil.copy(RUN / "adapters.safetensors", folder)
    assert codes(folder) == []


def test_with_a_checkpoint(folder: Path) -> None:
    shutil.copy(RUN / "0000300_adapters.safetensors", folder)
    assert CODE not in codes(folder)


def test_a_run_that_has_not_saved_yet(folder: Path) -> None:
    shutil.copy(RUN / "train.log", folder)
    assert CODE not in codes(folder)


def test_a_link_to_nothing_is_unreadable(folder: Path) -> None:
    (folder / "adapters.safetensors").symlink_to("../blobs/0123abcd")
    report = diagnose([folder], allow_model=False)
    assert any("adapters.safetensors" in one for one in report.unreadable)


def test_of_two_files_the_one_that_mlx_lm_reads(folder: Path) -> None:
    """PEFT's name comes first in the alphabet."""
    shutil.copy(RUN / "adapters.safetensors", folder)
    shutil.copy(FIXTURES / "adapters" / "peft-written" / "adapter_model.safetensors", folder)
    report = diagnose([folder], allow_model=False)
    found = [Path(one.source).name for one in report.evidence if one.kind == "adapter"]
    assert found == ["adapters.safetensors"]
