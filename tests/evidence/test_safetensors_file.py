"""The header of .safetensors files, and values against the safetensors library."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.safety.errors import InputError
from tests.weight_files import entry, save, save_raw, to_bfloat16


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8", "bool"])
def test_values_are_those_the_library_wrote(tmp_path: Path, dtype: str) -> None:
    values = (np.random.default_rng(0).normal(size=(5, 7)) * 3).astype(dtype)
    save_file({"x": values, "y": values[:2]}, tmp_path / "t.safetensors")
    tensors = read_safetensors(tmp_path / "t.safetensors").tensors
    loaded = tensors["x"].load()
    assert loaded.dtype == (np.float32 if dtype == "float16" else values.dtype)
    np.testing.assert_array_equal(loaded, values)
    np.testing.assert_array_equal(np.concatenate(list(tensors["x"].blocks(16))), values.ravel())
    np.testing.assert_array_equal(tensors["x"].rows((1, 3)), values[1:3])


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625, np.inf, 0.0], np.float32)
    path = save(tmp_path / "t.safetensors", {"x": to_bfloat16(values)}, {"x": "BF16"})
    tensor = read_safetensors(path).tensors["x"]
    np.testing.assert_array_equal(tensor.load(), values)
    assert count_nonfinite(tensor) == 1


def test_mlx_writes_null_metadata(tmp_path: Path) -> None:
    header = {"__metadata__": None, "x": entry([1], 0, 4)}
    path = save_raw(tmp_path / "t.safetensors", header, b"\0" * 4)
    assert read_safetensors(path).metadata == {}


def test_eight_bit_floats_are_known_and_not_decoded(tmp_path: Path) -> None:
    values = {"x": np.zeros(3, np.int8)}
    path = save(tmp_path / "t.safetensors", values, {"x": "F8_E4M3"})
    tensor = read_safetensors(path).tensors["x"]
    assert tensor.shape == (3,)
    with pytest.raises(InputError, match="F8_E4M3, whose values are not read"):
        tensor.load()
