"""Norms and spectra from r x r products, against the dense update in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.measure.weights.spectrum import adapter_statistics, factor_statistics
from tests.conftest import RUNS
from tests.weight_files import lora, save, to_bfloat16


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(0, 99),
    st.integers(-9, 9),
)
def test_figures_are_those_of_the_dense_update(
    inputs: int, outputs: int, rank: int, seed: int, exponent: int
) -> None:
    random = np.random.default_rng(seed)
    a = random.normal(size=(inputs, rank)) * 10.0**exponent
    b = random.normal(size=(rank, outputs))
    ours = factor_statistics(a, b)
    theirs = np.linalg.svd(a @ b, compute_uv=False)
    theirs = np.pad(theirs, (0, max(rank - theirs.size, 0)))[:rank]
    assert ours.frobenius == pytest.approx(np.linalg.norm(a @ b), rel=1e-6)
    np.testing.assert_allclose(ours.singular_values, theirs, atol=1e-6 * theirs[0])
    assert ours.stable_rank == pytest.approx((theirs**2).sum() / theirs[0] ** 2, rel=1e-6)
    share = theirs[theirs > 1e-7 * theirs[0]] / theirs.sum()
    entropy = -(share * np.log(share)).sum()
    assert ours.effective_rank == pytest.approx(np.exp(entropy), rel=1e-4)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_precision(tmp_path: Path, dtype: str) -> None:
    exact = lora({"model.layers.0.q": (96, 64)}, rank=8, b=0.1)
    stored = {
        name: to_bfloat16(value)
        if dtype == "BF16"
        else value.astype(np.float16 if dtype == "F16" else np.float32)
        for name, value in exact.items()
    }
    path = save(tmp_path / "adapters.safetensors", stored, dict.fromkeys(stored, dtype))
    adapter = Adapter.read(path)
    a, b = (adapter.tensors[f"model.layers.0.q.lora_{x}"].load().astype(float) for x in "ab")
    dense = np.linalg.svd(a @ b, compute_uv=False)[:8]
    np.testing.assert_allclose(adapter_statistics(adapter)[0].singular_values, dense, rtol=1e-6)
    assert adapter_statistics(adapter)[0].a_is_initial


def test_a_real_adapter() -> None:
    adapter = Adapter.read(RUNS / "healthy-ordinary")
    for module, ours in zip(adapter.modules, adapter_statistics(adapter), strict=True):
        a, b = module.factors()
        theirs = np.linalg.svd(a @ b, compute_uv=False)[: module.rank]
        np.testing.assert_allclose(ours.singular_values, theirs, rtol=1e-6)
        assert not ours.b_is_zero


def test_a_fresh_adapter() -> None:
    tensors = lora({"q": (50, 30)}, b=0.0)
    ours = factor_statistics(tensors["q.lora_a"].astype(float), tensors["q.lora_b"].astype(float))
    assert (ours.b_is_zero, ours.a_is_zero, ours.a_is_initial) == (True, False, True)
    assert (ours.frobenius, ours.spectral, ours.stable_rank, ours.effective_rank) == (0, 0, 0, 0)


def test_the_smallest_b_is_not_zero() -> None:
    b = np.zeros((4, 30))
    b[0, 0] = 5e-324
    assert not factor_statistics(np.ones((50, 4)), b).b_is_zero


@pytest.mark.parametrize(
    ("change", "draw"),
    [
        ("none", "drawn"),
        ("gaussian", "beyond"),
        ("shrunk", "shrunk"),
        ("one outlier", "beyond"),
        ("one rounded up", "drawn"),
        ("triangular", "other"),
        ("not finite", "other"),
    ],
)
def test_how_a_relates_to_its_draw(change: str, draw: str) -> None:
    a = lora({"q": (400, 30)}, rank=8)["q.lora_a"].astype(float)
    random = np.random.default_rng(0)
    if change == "gaussian":
        a = random.normal(size=a.shape) / np.sqrt(3 * 400)
    elif change == "shrunk":
        a *= 0.9
    elif change == "one outlier":
        a[0, 0] = 1.02 / np.sqrt(400)
    elif change == "one rounded up":
        a[0, 0] = 1.004 / np.sqrt(400)
    elif change == "triangular":
        a = random.triangular(-1, 0, 1, a.shape) / np.sqrt(400)
    elif change == "not finite":
        a[0, 0] = np.inf
    ours = factor_statistics(a, np.zeros((8, 30)))
    assert (ours.a_draw, ours.a_is_initial) == (draw, draw == "drawn")


def test_training_moves_a_out_of_its_draw() -> None:
    def draws(run: str) -> set[str]:
        return {one.a_draw for one in adapter_statistics(Adapter.read(RUNS / run))}

    for run in ("healthy-ordinary", "healthy-short-low-rate"):
        assert draws(run) == {"beyond"}
    assert draws("gradients-blocked") == {"drawn"}


def test_non_finite_values_are_counted() -> None:
    a, b = np.ones((6, 2)), np.ones((2, 5))
    a[0, 0], b[1, 1], b[1, 2] = np.nan, np.inf, -np.inf
    ours = factor_statistics(a, b)
    assert (ours.a_nonfinite, ours.b_nonfinite, ours.is_finite) == (1, 2, False)
    assert np.isnan(ours.frobenius)
    assert np.isnan(ours.stable_rank)


def test_norms_that_overflow_are_no_figures() -> None:
    ours = factor_statistics(np.full((3, 2), 1e200), np.ones((2, 3)))
    assert (ours.a_nonfinite, ours.is_finite) == (0, False)
