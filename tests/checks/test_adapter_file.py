"""The configuration of an adapter that is not there."""

import shutil
from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.api import diagnose
from tests.conftest import FIXTURES, HEALTHY

CODE = "adapter-file.absent"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration whose base model and rows are at hand."""
    made = copied_run(tmp_path / "run")
    for name in ("adapters.safetensors", "train.log"):
        (made / name).unlink()
    return made


def codes(folder: Path) -> list[str]:
    report = diagnose([folder], allow_model=False)
    return [one.code for one in report.findings if one.severity == "error"]


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        (None, True),
        ("adapters.safetensors", False),
        ("0000300_adapters.safetensors", False),
        # A run that has not saved yet.
        ("train.log", False),
    ],
)
def test_what_lies_beside_the_configuration(folder: Path, name: str | None, is_told: bool) -> None:
    if name is not None:
        shutil.copy(HEALTHY / name, folder)
    assert (CODE in codes(folder)) is is_told
    assert not is_told or codes(folder) == [CODE]


def test_a_link_to_nothing_is_unreadable(folder: Path) -> None:
    (folder / "adapters.safetensors").symlink_to("../blobs/0123abcd")
    report = diagnose([folder], allow_model=False)
    assert any("adapters.safetensors" in one for one in report.unreadable)


def test_of_two_files_the_one_that_mlx_lm_reads(folder: Path) -> None:
    """PEFT's name comes first in the alphabet."""
    shutil.copy(HEALTHY / "adapters.safetensors", folder)
    shutil.copy(FIXTURES / "adapters" / "peft-written" / "adapter_model.safetensors", folder)
    report = diagnose([folder], allow_model=False)
    found = [Path(one.source).name for one in report.evidence if one.kind == "adapter"]
    assert found == ["adapters.safetensors"]
