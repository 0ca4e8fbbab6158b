"""`mlxdoctor convert`: what it writes, what it refuses to write, and what it loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.cli import main
from tests.conftest import RUNS
from tests.convert.given import BASE, WRITTEN, mlx_adapter, peft_adapter

HEALTHY = str(RUNS / "healthy-ordinary")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peft, mlx = tmp_path / "peft", tmp_path / "mlx"
    assert main(["convert", HEALTHY, "-o", str(peft)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "28 modules in 4 layers, rank 8, scale 20, F32, nothing rounded, names and"
    )
    assert "wrote adapter_config.json and adapter_model.safetensors" in out
    assert files(peft) == ["adapter_config.json", "adapter_model.safetensors"]
    assert main(["convert", str(peft), "--to", "mlx", "--model", str(BASE), "-o", str(mlx)]) == 0
    assert files(mlx) == ["adapter_config.json", "adapters.safetensors"]
    assert json.loads((mlx / "adapter_config.json").read_text())["model"] == str(BASE)


def test_the_default_folder_and_what_changed_for_the_other_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["convert", HEALTHY]) == 0
    assert main(["convert", str(WRITTEN)]) == 0
    out = capsys.readouterr().out
    assert "note: 4 modules of lower rank are filled up with zeros to rank 8" in out
    assert files(tmp_path) == ["healthy-ordinary-peft", "peft-written-mlx"]


def test_a_refusal_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = peft_adapter(tmp_path / "a", bias="all")
    assert main(["convert", str(source), "-o", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert (
        "says all for bias; mlx-lm has LoRA and DoRA for causal language models only"
        in captured.err
    )
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = mlx_adapter(tmp_path / "a"), tmp_path / "out"
    target.mkdir()
    assert main(["convert", str(source), "-o", str(target)]) == 0
    before = (target / "adapter_model.safetensors").stat().st_mtime_ns
    assert main(["convert", str(source), "-o", str(target)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (target / "adapter_model.safetensors").stat().st_mtime_ns == before
    assert main(["convert", str(source), "-o", str(target), "--force"]) == 0


@pytest.mark.parametrize("below", ["", "peft"])
def test_nothing_is_written_into_the_adapter(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = mlx_adapter(tmp_path / "a")
    before = files(source)
    assert main(["convert", str(source), "-o", str(source / below), "--force"]) == 2
    assert "in which nothing is written" in capsys.readouterr().err
    assert files(source) == before


def test_a_file_is_no_folder_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["convert", HEALTHY, "-o", str(tmp_path / "out"), "--force"]) == 2
    assert "is not a folder" in capsys.readouterr().err
