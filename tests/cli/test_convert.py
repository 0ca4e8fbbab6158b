import json
from pathlib import Path

import pytest

from tests.conftest import HEALTHY, Call, digest
from tests.convert.given import BASE, WRITTEN, mlx_adapter, peft_adapter


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_there_and_back(tmp_path: Path, call: Call) -> None:
    peft, mlx = tmp_path / "peft", tmp_path / "mlx"
    code, out, _ = call("convert", HEALTHY, "-o", peft)
    assert code == 0
    assert out.startswith(
        "28 modules in 4 layers, rank 8, scale 20, F32, nothing rounded, names and"
    )
    assert "wrote adapter_config.json and adapter_model.safetensors" in out
    assert files(peft) == ["adapter_config.json", "adapter_model.safetensors"]
    assert call("convert", peft, "--model", BASE, "-o", mlx)[0] == 0
    assert files(mlx) == ["adapter_config.json", "adapters.safetensors"]
    assert json.loads((mlx / "adapter_config.json").read_text())["model"] == str(BASE)


def test_the_default_folder_and_what_changed_for_the_other_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("convert", HEALTHY)[0] == 0
    code, out, _ = call("convert", WRITTEN)
    assert code == 0
    assert "rank 8, scale 2" in out
    assert files(tmp_path) == ["healthy-ordinary-peft", "peft-written-mlx"]


def test_a_refusal_is_one_sentence_and_writes_nothing(tmp_path: Path, call: Call) -> None:
    source = peft_adapter(tmp_path / "a", bias="all")
    code, out, err = call("convert", source, "-o", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "says all for bias; mlx-lm has LoRA and DoRA for causal language models only" in err
    assert not (tmp_path / "out").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path, call: Call) -> None:
    source, target = mlx_adapter(tmp_path / "a"), tmp_path / "out"
    target.mkdir()
    assert call("convert", source, "-o", target)[0] == 0
    before = digest(target)
    code, _, err = call("convert", source, "-o", target)
    assert (code, "is not empty" in err) == (2, True)
    assert digest(target) == before
    (tmp_path / "file").write_text("mine")
    code, _, err = call("convert", source, "-o", tmp_path / "file")
    assert (code, "is not a folder" in err) == (2, True)
