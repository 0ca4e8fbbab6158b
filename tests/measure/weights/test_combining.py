"""Several adapters together, against the dense sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.measure.weights.combining import combine
from tests.conftest import RUNS
from tests.weight_files import lora, save, write_config

Q = "model.layers.0.self_attn.q_proj"
V = "model.layers.0.self_attn.v_proj"


def adapter(folder: Path, seed: int, scale: float = 10.0, **modules: tuple[int, int]) -> Path:
    """An adapter with these modules; its folder."""
    names = {"q": Q, "v": V}
    tensors = lora({names[name]: shape for name, shape in modules.items()}, b=0.3, seed=seed)
    save(folder / "adapters.safetensors", tensors)
    write_config(folder, lora_parameters={"rank": 8, "scale": scale, "dropout": 0.0})
    return folder


def dense(folder: Path, module: str, scale: float = 10.0) -> np.ndarray:
    """scale·A·B as a matrix."""
    from safetensors.numpy import load_file

    found = load_file(folder / "adapters.safetensors")
    a, b = (found[f"{module}.lora_{one}"].astype(np.float64) for one in "ab")
    return scale * a @ b


def test_sums_and_means_against_dense_ones(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", 1, q=(40, 30))
    two = adapter(tmp_path / "two", 2, q=(40, 30))
    (found,) = combine([one, two])
    first, second = dense(one, Q), dense(two, Q)
    norm = np.linalg.norm
    assert found.norms == pytest.approx((norm(first), norm(second)), rel=1e-6)
    assert found.stacked == pytest.approx(norm(first + second), rel=1e-6)
    assert found.averaged == pytest.approx(norm(first + second) / 2, rel=1e-6)
    cosine = (first * second).sum() / norm(first) / norm(second)
    assert found.cosine == pytest.approx(cosine, abs=1e-9)


def test_averaging_the_factors_is_not_averaging_the_updates(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", 1, q=(40, 30))
    two = adapter(tmp_path / "two", 2, q=(40, 30))
    (found,) = combine([one, two])
    from safetensors.numpy import load_file

    files = [load_file(folder / "adapters.safetensors") for folder in (one, two)]
    a, b = (np.mean([f[f"{Q}.lora_{x}"] for f in files], axis=0, dtype=float) for x in "ab")
    mean = (dense(one, Q) + dense(two, Q)) / 2
    error = np.linalg.norm(10 * a @ b - mean) / np.linalg.norm(mean)
    assert found.factor_error == pytest.approx(error, rel=1e-6)
    assert error > 0.5
    (same,) = combine([one, one])
    assert same.factor_error == pytest.approx(0.0, abs=1e-6)
    assert same.cosine == pytest.approx(1.0)


def test_opposite_updates_cancel(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", 1, q=(40, 30))
    other = adapter(tmp_path / "other", 1, scale=-10.0, q=(40, 30))
    (found,) = combine([one, other])
    assert found.stacked == pytest.approx(0.0, abs=1e-5)
    assert found.cosine == pytest.approx(-1.0)
    assert found.factor_error is None


def test_a_module_of_one_adapter_alone(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", 1, q=(40, 30), v=(40, 20))
    two = adapter(tmp_path / "two", 2, q=(40, 30))
    found = {one.module: one for one in combine([one, two])}
    alone = found[V]
    norm = np.linalg.norm(dense(one, V))
    assert alone.norms == (pytest.approx(norm, rel=1e-6), None)
    assert alone.averaged == pytest.approx(norm / 2, rel=1e-6)
    assert alone.cosine is None
    assert alone.factor_error is None


def test_updates_of_different_shapes_are_not_added(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one", 1, q=(40, 30))
    two = adapter(tmp_path / "two", 2, q=(20, 30))
    (found,) = combine([one, two])
    assert found.stacked is None
    assert all(found.norms)


def test_real_adapters_of_one_base_are_nearly_orthogonal() -> None:
    found = combine([RUNS / "healthy-ordinary", RUNS / "healthy-masked-warmup"])
    assert len(found) == 28
    assert all(one.cosine is not None and abs(one.cosine) < 0.3 for one in found)
    assert all(
        one.stacked is not None and one.norms[0] is not None and one.stacked > one.norms[0]
        for one in found
    )
