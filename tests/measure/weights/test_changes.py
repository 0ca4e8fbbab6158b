"""What is reported of two models' weights, however they are stored."""

import json
from collections.abc import Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.measure.weights.changed_tensors import WeightChange, weight_changes
from mlxdoctor.safety.errors import InputError
from tests.weight_files import save, to_bfloat16

Arrays = Mapping[str, NDArray[Any]]
RANDOM = np.random.default_rng(0)
#: Of odd sizes, so that no block is whole.
WEIGHTS = {
    "model.embed_tokens.weight": RANDOM.normal(size=(1501, 256)).astype("f4"),
    "model.layers.0.self_attn.q_proj.weight": RANDOM.normal(size=(64, 128)).astype("f4"),
    "model.norm.weight": np.ones(7, "f4"),
}
EMBEDDING, Q, NORM = WEIGHTS


def model(
    folder: Path, tensors: Arrays, dtype: str | None = None, shards: int = 1, **config: Any
) -> Path:
    """A model folder of the values in a type, or as they are; in shards, with an index."""
    kinds = {"F16": "f2", "F32": "f4", "F64": "f8"}
    values = dict(tensors)
    dtypes = {name: "U8" for name, one in tensors.items() if one.dtype == np.uint8}
    if dtype == "BF16":
        values = {name: to_bfloat16(one) for name, one in tensors.items()}
        dtypes = dict.fromkeys(values, dtype)
    elif dtype is not None:
        values = {name: one.astype(kinds[dtype]) for name, one in tensors.items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    places = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(values)}
    for place in set(places.values()):
        part = {name: one for name, one in values.items() if places[name] == place}
        save(folder / place, part, dtypes)
    index = {"weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def changes(base: Path, tuned: Path) -> dict[str, WeightChange]:
    found = weight_changes(BaseModel.read(base), TunedModel.read(tuned))
    return {one.name: one for one in found}


def edited(name: str, change: Any) -> dict[str, NDArray[Any]]:
    """The weights, with one changed by a function."""
    return {**WEIGHTS, name: change(WEIGHTS[name].copy())}


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_change_is_measured_in_every_type(tmp_path: Path, dtype: str, shards: int) -> None:
    base = model(tmp_path / "base", WEIGHTS, dtype)
    moved = edited(EMBEDDING, lambda values: 1.25 * values)
    found = changes(base, model(tmp_path / "tuned", moved, dtype, shards))
    statuses = {name: one.status for name, one in found.items()}
    assert statuses == {**dict.fromkeys(WEIGHTS, "same"), EMBEDDING: "changed"}
    tolerance = {"BF16": 2e-3, "F16": 1e-4}.get(dtype, 1e-6)
    assert found[EMBEDDING].relative == pytest.approx(0.25, rel=tolerance)
    assert (found[Q].relative, found[Q].before, found[Q].after) == (0.0, dtype, dtype)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize("place", [0, 70_001, 131_071, 131_072, 200_000, 1501 * 256 - 1])
def test_one_value_anywhere_is_found_and_weighed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, place: int
) -> None:
    # Small enough for this matrix to have several of either, of which most are the same.
    monkeypatch.setattr("mlxdoctor.measure.weights.changed_tensors._BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr("mlxdoctor.measure.weights.changed_tensors._BLOCK_ELEMENTS", 1 << 17)
    values = WEIGHTS[EMBEDDING].copy()
    values.flat[place] += 100.0
    base = model(tmp_path / "base", WEIGHTS, dtype)
    found = changes(base, model(tmp_path / "tuned", {**WEIGHTS, EMBEDDING: values}, dtype))
    expected = 100 / np.linalg.norm(WEIGHTS[EMBEDDING].astype("f8"))
    assert [name for name, one in found.items() if one.status == "changed"] == [EMBEDDING]
    assert found[EMBEDDING].relative == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_values_that_are_not_finite_are_counted(tmp_path: Path, dtype: str) -> None:
    broken = WEIGHTS[Q].copy()
    broken[3, 5], broken[60, 2:4] = np.nan, -np.inf
    base = model(tmp_path / "base", WEIGHTS, dtype)
    found = changes(base, model(tmp_path / "tuned", {Q: broken}, dtype))
    assert (found[Q].nonfinite, found[Q].relative) == (3, inf)


def test_what_is_no_plain_change(tmp_path: Path) -> None:
    numbers = {"table": np.arange(8, dtype=np.uint32)}
    zeros = edited(NORM, np.zeros_like) | numbers
    base = model(tmp_path / "base", zeros)
    assert {one.status for one in changes(base, base).values()} == {"same"}
    other = {Q: WEIGHTS[Q].T.copy(), "lm_head.weight": WEIGHTS[Q], NORM: -zeros[NORM]}
    tuned = model(tmp_path / "tuned", {**other, "table": numbers["table"] + 1})
    found = changes(base, tuned)
    # What only one of them has, or in another shape, is not compared. Integers have no norm; a
    # bit that changes no value is a change of nothing.
    assert {name: (one.status, one.relative) for name, one in found.items()} == {
        NORM: ("changed", 0.0),
        "table": ("changed", None),
    }
    pair = BaseModel.read(base), TunedModel.read(tuned)
    assert [one.name for one in weight_changes(*pair, leave_out={NORM})] == ["table"]


def test_another_precision_changes_by_its_rounding(tmp_path: Path) -> None:
    base = model(tmp_path / "base", WEIGHTS)
    found = changes(base, model(tmp_path / "tuned", WEIGHTS, "BF16"))[EMBEDDING]
    assert (found.before, found.after, found.status) == ("F32", "BF16", "changed")
    assert 1e-4 < (found.relative or 0) < 2**-8
    assert not found.is_requantized


def test_a_file_that_ends_early_is_the_users_error(tmp_path: Path) -> None:
    base, tuned = model(tmp_path / "base", WEIGHTS), model(tmp_path / "tuned", WEIGHTS)
    before, after = BaseModel.read(base), TunedModel.read(tuned)
    file = tuned / "model-0.safetensors"
    file.write_bytes(file.read_bytes()[:-4096])
    with pytest.raises(InputError, match="ended inside"):
        list(weight_changes(before, after))


def quantized(tensors: Arrays, **how: Any) -> dict[str, NDArray[Any]]:
    """The matrices as MLX quantises them, the other tensors as they are."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in tensors.items():
        if values.ndim < 2:
            found[name] = values
            continue
        parts = mx.quantize(mx.array(values), **how)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=False):
            found[f"{name.removesuffix('.weight')}.{part}"] = np.array(array)
    return found


def dequantized(parts: Arrays, name: str, **how: Any) -> NDArray[Any]:
    """A matrix as MLX reads it."""
    module = name.removesuffix(".weight")
    arrays = [
        mx.array(parts[f"{module}.{p}"])
        for p in ("weight", "scales", "biases")
        if f"{module}.{p}" in parts
    ]
    return np.array(mx.dequantize(*arrays, **how).astype(mx.float32), dtype=np.float64)


@pytest.mark.parametrize(
    "how",
    [
        {"bits": bits, "group_size": group_size, "mode": mode}
        for bits, group_size, mode in (
            *product((2, 3, 4, 5, 6, 8), (32, 64), ("affine",)),
            (4, 32, "mxfp4"),
        )
    ],
)
def test_quantised_matrices_are_compared_by_their_values(
    tmp_path: Path, how: Mapping[str, Any]
) -> None:
    noise = 0.5 * RANDOM.normal(size=(1501, 256))
    moved = edited(EMBEDDING, lambda values: (values + noise).astype("f4"))
    before, after = quantized(WEIGHTS, **how), quantized(moved, **how)
    base = model(tmp_path / "base", before, quantization=how)
    found = changes(base, model(tmp_path / "tuned", after, shards=2, quantization=how))
    statuses = {name: one.status for name, one in found.items()}
    assert statuses == {**dict.fromkeys(WEIGHTS, "same"), EMBEDDING: "changed"}
    matrix = found[EMBEDDING]
    assert matrix.shape == (1501, 256)
    assert matrix.before == matrix.after == f"{how['bits']}-bit {how['mode']}/{how['group_size']}"
    old, new = (dequantized(parts, EMBEDDING, **how) for parts in (before, after))
    expected = np.linalg.norm(new - old) / np.linalg.norm(old)
    assert matrix.relative == pytest.approx(expected, rel=1e-5)


def test_a_quantised_copy_of_a_plain_model(tmp_path: Path) -> None:
    how = {"bits": 8, "group_size": 64}
    base = model(tmp_path / "base", WEIGHTS)
    found = changes(base, model(tmp_path / "tuned", quantized(WEIGHTS, **how), quantization=how))
    assert found[Q].is_requantized
    assert (found[Q].before, found[Q].after) == ("F32", "8-bit affine/64")
    assert 1e-4 < (found[Q].relative or 0) < 0.01
    assert found[NORM].status == "same"
