"""Values in the type that they are stored in: read, compared, multiplied by what does not round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mlxdoctor.convert.portable import is_same, stored_values, times
from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.safety.errors import InputError
from tests.weight_files import save, to_bfloat16

VALUES = np.array([[1.5, -2.0, 0.0], [3.25, 65504.0, 6e-8]], "f4")
TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def tensor(dtype: str, values: NDArray[Any] = VALUES) -> NDArray[Any]:
    return values.astype(TYPES[dtype])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_bit_is_read(tmp_path: Path, dtype: str) -> None:
    values = to_bfloat16(VALUES) if dtype == "BF16" else tensor(dtype)
    path = save(tmp_path / "x.safetensors", {"a": values}, {"a": dtype})
    assert is_same(stored_values(read_safetensors(path).tensors["a"]), tensor(dtype))


def test_only_types_of_both_libraries_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "x.safetensors", {"a": VALUES.astype("f8")})
    with pytest.raises(InputError, match="a is F64"):
        stored_values(read_safetensors(path).tensors["a"])


def test_the_same_is_the_same_in_type_shape_and_bits() -> None:
    assert is_same(VALUES.T, VALUES.T.copy())
    assert not is_same(VALUES, VALUES.reshape(3, 2))
    assert not is_same(VALUES, VALUES.astype("f2"))
    assert not is_same(np.zeros(2, "f4"), -np.zeros(2, "f4"))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_power_of_two_is_exact(dtype: str) -> None:
    start = tensor(dtype, np.array([1.5, -3.25, 0.0, np.nan, np.inf], "f4"))
    doubled = times(start, 4.0)
    assert doubled is not None
    assert is_same(doubled[:3], tensor(dtype, np.array([6.0, -13.0, 0.0], "f4")))
    back = times(doubled, 0.25)
    assert back is not None
    assert is_same(back[:3], start[:3])


@pytest.mark.parametrize(
    ("dtype", "factor"), [("F32", 3.0), ("F16", 2.0), ("F16", 0.5), ("F32", 0.0), ("BF16", 1.1)]
)
def test_what_would_round_is_not_multiplied(dtype: str, factor: float) -> None:
    # 65504 is the largest half, and 6e-8 the smallest.
    assert times(tensor(dtype), factor) is None


def test_halves_of_single_precision_are_exact_where_those_of_half_are_not() -> None:
    assert times(tensor("F32"), 0.5) is not None
