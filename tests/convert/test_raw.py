"""Bits of tensors: turned, filled up, multiplied by what does not round, and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from mlxdoctor.convert.raw import RawTensor, read_raw, safetensors_bytes
from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.safety.errors import InputError
from tests.weight_files import save, to_bfloat16

VALUES = np.array([[1.5, -2.0, 0.0], [3.25, 65504.0, 6e-8]], "f4")


def tensor(dtype: str, values: NDArray[Any] = VALUES) -> RawTensor:
    if dtype == "BF16":
        return RawTensor(dtype, to_bfloat16(values))
    kind = {"F32": "f4", "F16": "f2"}[dtype]
    return RawTensor(dtype, values.astype(kind).view(kind.replace("f", "u")))


def test_a_written_file_is_read_back_by_two_readers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"b": tensor("BF16"), "a": tensor("F16").transposed, "c": tensor("F32")}
    path.write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
    read = read_safetensors(path)
    assert read.metadata == {"format": "pt"}
    assert min(one.offset for one in read.tensors.values()) % 8 == 0
    assert all(read_raw(read.tensors[name]).is_same(tensors[name]) for name in tensors)
    with safe_open(path, "numpy") as file:
        assert np.array_equal(file.get_tensor("c"), VALUES)
        assert np.array_equal(file.get_tensor("a"), VALUES.T.astype("f2"))


def test_only_types_of_both_libraries_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "x.safetensors", {"a": VALUES.astype("f8")})
    with pytest.raises(InputError, match="a is F64"):
        read_raw(read_safetensors(path).tensors["a"])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_power_of_two_is_exact(dtype: str) -> None:
    start = tensor(dtype, np.array([1.5, -3.25, 0.0, np.nan, np.inf], "f4"))
    doubled = start.times(4.0)
    assert doubled is not None
    assert not doubled.is_same(start)
    back = doubled.times(0.25)
    assert back is not None
    assert np.array_equal(back.bits[:3], start.bits[:3])
    expected = np.array([6.0, -13.0, 0.0], "f4")
    assert np.array_equal(doubled.bits[:3], tensor(dtype, expected).bits)


@pytest.mark.parametrize(
    ("dtype", "factor"), [("F32", 3.0), ("F16", 2.0), ("F16", 0.5), ("F32", 0.0), ("BF16", 1.1)]
)
def test_what_would_round_is_not_multiplied(dtype: str, factor: float) -> None:
    # 65504 is the largest half, and 6e-8 the smallest.
    assert tensor(dtype).times(factor) is None


def test_halves_of_single_precision_are_exact_where_those_of_half_are_not() -> None:
    assert tensor("F32").times(0.5) is not None


def test_filling_up_appends_zeros() -> None:
    filled = tensor("F32").padded(1, 5)
    assert filled.shape == (2, 5)
    assert np.array_equal(filled.bits[:, :3], tensor("F32").bits)
    assert not filled.bits[:, 3:].any()
