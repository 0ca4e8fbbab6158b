"""What the base model decides: other names, quantised weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.convert.conversion import convert
from mlxdoctor.safety.errors import InputError
from tests.convert.given import stated
from tests.weight_files import lora, save, write_config

GATE = "model.layers.0.feed_forward.w1"


def base_model(folder: Path, writer: str, names: list[str], **config: Any) -> str:
    """A model of matrices of 16 inputs and 8 outputs, saved by mlx-lm ("mlx") or not ("pt")."""
    weights = {f"{name}.weight": np.ones((8, 16), "f4") for name in names}
    save(folder / "model.safetensors", weights, metadata={"format": writer})
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1, **config}))
    return str(folder)


def adapter(folder: Path, names: list[str], shape: tuple[int, int] = (16, 8)) -> Path:
    save(folder / "adapters.safetensors", lora(dict.fromkeys(names, shape)))
    keys = {"rank": 4, "scale": 2.0, "keys": names}
    write_config(folder, num_layers=1, lora_parameters=keys)
    return folder


def test_another_name_is_looked_up_in_a_base_of_the_other_library(tmp_path: Path) -> None:
    source = adapter(tmp_path / "a", [GATE])
    theirs = base_model(tmp_path / "theirs", "pt", [GATE])
    assert stated(convert(source, model=theirs).files)["target_modules"] == [GATE]
    ours = base_model(tmp_path / "ours", "mlx", [GATE])
    with pytest.raises(InputError, match="may have another name in PEFT"):
        convert(source, model=ours)
    without = base_model(tmp_path / "without", "pt", ["model.layers.0.feed_forward.w2"])
    with pytest.raises(InputError, match="w1 is not in the base model"):
        convert(source, model=without)


def test_weights_packed_by_another_quantiser_have_no_shape_to_compare(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    base = tmp_path / "base"
    save(base / "model.safetensors", {f"{name}.qweight": np.ones((2, 16), "u4")})
    (base / "config.json").write_text('{"num_hidden_layers": 1}')
    assert convert(adapter(tmp_path / "a", [name]), model=str(base)).summary.startswith("1 modules")
    with pytest.raises(InputError, match="v_proj is not in the base model"):
        convert(adapter(tmp_path / "b", [name.replace("q_", "v_")]), model=str(base))


def test_a_quantised_base_is_said(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    plain = base_model(tmp_path / "plain", "mlx", [name])
    packed = base_model(
        tmp_path / "packed", "mlx", [name], quantization={"bits": 4, "group_size": 64}
    )
    source = adapter(tmp_path / "a", [name])
    assert any("quantised" in note for note in convert(source, model=packed).notes)
    assert not any("quantised" in note for note in convert(source, model=plain).notes)
