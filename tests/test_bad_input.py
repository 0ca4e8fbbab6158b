"""Bad input gets one sentence that names the file, and exit code 2; what is readable is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from mlxdoctor.cli import main
from tests.conftest import RUNS


@dataclass(frozen=True)
class Result:
    """How one call of the command line ended."""

    exit_code: int
    stdout: str
    stderr: str


Diagnose = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """Calls `mlxdoctor diagnose` and returns how it ended."""

    def call(*arguments: str | Path) -> Result:
        code = main(["diagnose", *map(str, arguments), "--stdout", "json"])
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    return call


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def truncated(path: Path) -> None:
    source = RUNS / "healthy-ordinary" / path.name
    content = source.read_bytes() if source.exists() else b'{"batch_size": 4, "iters":'
    path.write_bytes(content[: max(10, len(content) // 2)])


def latin(path: Path) -> None:
    path.write_bytes("{'größe': 'ä'}".encode("latin-1"))


def another_kind(path: Path) -> None:
    path.write_text("Dear diary, nothing was trained today.\n")


DAMAGES = [empty, binary, another_kind]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("adapters.safetensors", damage) for damage in (*DAMAGES, truncated)),
        *(("train.log", damage) for damage in DAMAGES),
        *(("adapter_config.json", damage) for damage in (*DAMAGES, truncated, latin)),
    ],
)
def test_a_file_alone(
    run: Diagnose, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(tmp_path / name)
    result = run(tmp_path / name)
    assert result.exit_code == 2, result.stderr
    assert name in result.stderr
    assert "Traceback" not in result.stderr
    complaints = [line for line in result.stderr.splitlines() if line.startswith("mlxdoctor:")]
    assert len(complaints) == 1


@pytest.mark.parametrize(
    "name", ["adapters.safetensors", "train.log", "adapter_config.json", "generations.jsonl"]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_rest_of_a_run_is_still_examined(
    run: Diagnose, copied: Callable[[str], Path], name: str, damage: Callable[[Path], None]
) -> None:
    folder = copied("healthy-ordinary")
    damage(folder / name)
    result = run(folder, "--no-generate", "--base", RUNS.parent / "base")
    data = json.loads(result.stdout)
    assert any(outcome["status"] in ("passed", "found") for outcome in data["outcomes"])
    assert not any(outcome["status"] == "crashed" for outcome in data["outcomes"])
    if name in ("adapters.safetensors", "adapter_config.json"):
        # By these names they are evidence; the others could be anything.
        assert result.exit_code == 2
        assert name in result.stderr


def test_a_missing_path(run: Diagnose) -> None:
    result = run("nowhere/at/all")
    assert result.exit_code == 2
    assert "nowhere/at/all: there is no such file or folder" in result.stderr


def test_a_pickled_adapter_is_refused(run: Diagnose, tmp_path: Path) -> None:
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x04K\x01.")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    result = run(tmp_path)
    assert "Traceback" not in result.stderr
    assert result.exit_code in (2, 3)


@pytest.mark.parametrize("kind", ["folder", "log", "base", "data", "config"])
def test_a_folder_where_a_file_belongs(run: Diagnose, tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        result = run(tmp_path)
        assert result.exit_code == 2
        assert "holds nothing that a fine-tune leaves behind" in result.stderr
        return
    if kind == "config":
        (tmp_path / "adapter_config.json").mkdir()
        result = run(tmp_path)
    else:
        result = run(RUNS / "healthy-ordinary", f"--{kind}", tmp_path, "--no-generate")
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
