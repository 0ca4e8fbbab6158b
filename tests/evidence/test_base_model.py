import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from tests.conftest import FIXTURES
from tests.weight_files import save

NAME = "model.layers.0.mlp.up_proj"


def quantized(folder: Path, mode: str, bits: int, group_size: int, **config: Any) -> np.ndarray:
    """Write a model of one matrix quantised by MLX; return what it stands for."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    weight = mx.random.normal((64, 256), key=mx.random.key(0))
    parts = mx.quantize(weight, group_size=group_size, bits=bits, mode=mode)
    names = ("weight", "scales", "biases")
    tensors = {f"{NAME}.{name}": part for name, part in zip(names, parts, strict=False)}
    tensors["model.norm.weight"] = mx.ones((256,))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    stated = {"quantization": {"group_size": group_size, "bits": bits, "mode": mode}, **config}
    (folder / "config.json").write_text(json.dumps(stated))
    dense = mx.dequantize(*parts, group_size=group_size, bits=bits, mode=mode)
    return np.array(dense.astype(mx.float32))


MODES = [("affine", bits, 64) for bits in (2, 3, 4, 5, 6, 8)] + [
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "bits", "group_size"), MODES)
def test_quantised_values_are_mlxs(tmp_path: Path, mode: str, bits: int, group_size: int) -> None:
    dense = quantized(tmp_path, mode, bits, group_size)
    base = BaseModel.read(tmp_path)
    assert base.linear_shapes[NAME] == (256, 64)
    assert base.parameter_count == 64 * 256 + 256
    assert base.quantized[NAME].bits == bits
    np.testing.assert_array_equal(base.quantized[NAME].rows((0, 64)), dense)
    np.testing.assert_array_equal(
        base.quantized[NAME].rows((5, 9), (60, 64)), dense[[*range(5, 9), *range(60, 64)]]
    )
    assert base.weight_norm(NAME) == pytest.approx(np.linalg.norm(dense), rel=1e-6)


@pytest.mark.slow
def test_a_layers_own_quantisation_overrides(tmp_path: Path) -> None:
    own = {"group_size": 64, "bits": 4, NAME: {"group_size": 32, "bits": 8}}
    dense = quantized(tmp_path, "affine", 8, 32, quantization=own)
    base = BaseModel.read(tmp_path)
    assert base.quantized[NAME].bits == 8
    np.testing.assert_array_equal(base.quantized[NAME].rows((0, 64)), dense)


def test_the_fixture_base() -> None:
    base = BaseModel.read(FIXTURES / "base")
    assert (base.num_layers, base.hidden_size) == (4, 96)
    assert (base.vocab_size, base.eos_token_ids, base.quantized) == (768, (767,), {})
    assert base.parameter_count == 480_096
    assert base.linear_shapes["model.layers.0.mlp.down_proj"] == (256, 96)
    assert base.linear_shapes["model.embed_tokens"] == (768, 96)
    assert base.is_mlx
    name = "model.embed_tokens"
    dense = np.linalg.norm(base.tensors[f"{name}.weight"].load().astype(float))
    assert base.weight_norm(name, max_rows=1000) == pytest.approx(dense, rel=1e-12)
    assert base.weight_norm(name, max_rows=256) == pytest.approx(dense, rel=0.05)


def test_shards_and_nested_configuration(tmp_path: Path) -> None:
    matrix = np.ones((6, 4), np.float32)
    save(tmp_path / "model-1.safetensors", {"model.layers.0.a.weight": matrix})
    save(tmp_path / "model-2.safetensors", {"model.layers.1.a.weight": matrix})
    save(tmp_path / "stray.safetensors", {"x": matrix})
    files = {f"model.layers.{i}.a.weight": f"model-{i + 1}.safetensors" for i in (0, 1)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    text = {"hidden_size": 4, "num_hidden_layers": 2, "eos_token_id": [1, 2], "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t", "text_config": text}))
    base = BaseModel.read(tmp_path)
    assert set(base.tensors) == set(files)
    assert (base.hidden_size, base.vocab_size, base.eos_token_ids) == (4, 9, (1, 2))
    assert base.num_layers == 2
    assert not base.is_mlx
