"""One description of modules, of changed weights, and of saves."""

from dataclasses import replace
from math import inf, isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.engines.tensors import (
    ModuleFacts,
    change,
    describe,
    quantity_of,
    sharing,
    size_of,
    straight_way,
)
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from tests.conftest import RUNS
from tests.weight_files import lora


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
    facts = replace(describe("q", a, b, spectrum=True), scale=-2.0, base_norm=4.0)
    theirs = np.linalg.svd(a @ b, compute_uv=False)
    dense = np.linalg.norm(a @ b)
    assert facts.product_norm == pytest.approx(dense, rel=1e-6)
    assert facts.update_norm == pytest.approx(2 * dense, rel=1e-6)
    assert facts.relative == pytest.approx(dense / 2, rel=1e-6)
    nominal = size_of(facts, "nominal")
    assert nominal == pytest.approx(2 * dense / sqrt(min(inputs, outputs)), rel=1e-6)
    assert facts.spectral_norm == pytest.approx(theirs[0], rel=1e-6)


def test_a_fresh_adapter() -> None:
    tensors = lora({"q": (50, 30)}, b=0.0)
    a, b = tensors["q.lora_a"], tensors["q.lora_b"].astype(float)
    facts = describe("q", a, b, spectrum=True)
    assert (facts.b.is_zero, facts.a.is_zero, facts.a_is_drawn) == (True, False, True)
    assert (facts.product_norm, facts.spectral_norm) == (0, 0)
    b[0, 0] = 5e-324
    assert not describe("q", a, b).b.is_zero


DRAWN = lora({"q": (400, 30)}, rank=8)["q.lora_a"].astype(float)
RANDOM = np.random.default_rng(0)


def with_first(value: float) -> np.ndarray:
    """The draw with another first value, in bounds of the draw."""
    a = DRAWN.copy()
    a[0, 0] = value / np.sqrt(400)
    return a


@pytest.mark.parametrize(
    ("a", "is_drawn", "left"),
    [
        (DRAWN, True, False),
        (RANDOM.normal(size=DRAWN.shape) / np.sqrt(3 * 400), False, True),
        (0.9 * DRAWN, False, False),
        (with_first(1.02), False, True),
        # Rounded up.
        (with_first(1.004), True, False),
        (RANDOM.triangular(-1, 0, 1, DRAWN.shape) / np.sqrt(400), False, False),
        (with_first(np.inf), False, True),
    ],
)
def test_how_a_relates_to_its_draw(a: np.ndarray, is_drawn: bool, left: bool) -> None:
    facts = describe("q", a, np.zeros((8, 30)))
    assert (facts.a_is_drawn, facts.a_left_draw) == (is_drawn, left)


def test_training_moves_a_out_of_its_draw() -> None:
    for run, left in (("healthy-ordinary", True), ("gradients-blocked", False)):
        assert {one.a_left_draw for one in factor_facts(Adapter.read(RUNS / run))} == {left}


def test_what_is_not_finite_has_no_norm() -> None:
    a, b = np.ones((6, 2), "f4"), np.ones((2, 5), "f4")
    a[0, 0], b[1, 1], b[1, 2] = np.nan, np.inf, -np.inf
    facts = describe("q", a, b)
    assert (facts.a.nonfinite, facts.b.nonfinite, facts.is_finite) == (1, 2, False)
    assert isnan(facts.product_norm)
    # Nor has what overflows.
    facts = describe("q", np.full((3, 2), 1e200), np.ones((2, 3)))
    assert (facts.a.nonfinite, facts.is_finite) == (0, False)


@pytest.mark.parametrize(
    ("values", "levels", "rarer_sign"),
    [
        (np.full((40, 4), -0.5, "f4"), 1, 0.0),
        (np.zeros((40, 4), "f4"), 1, 0.0),
        (np.tile([1.0, 2.0, -1.0, 4.0], (40, 1)), 4, 0.25),
        (np.arange(1, 2049.0).reshape(512, 4), 1024, 0.0),
    ],
)
def test_the_first_values(values: np.ndarray, levels: int, rarer_sign: float) -> None:
    a = describe("q", values, np.zeros((4, 8))).a
    assert (a.levels, a.rarer_sign) == (levels, rarer_sign)


def modules(*sizes: float) -> list[ModuleFacts]:
    """Modules with updates of such sizes relative to their weights, all different."""
    made = []
    for number, size in enumerate(sizes):
        factors = lora({"q": (64, 64)}, seed=number, b=0.1 if size else 0.0)
        facts = describe(f"{number}", factors["q.lora_a"], factors["q.lora_b"])
        norm = facts.product_norm / size if size else 8.0
        made.append(replace(facts, scale=1.0, base_norm=norm))
    return made


def test_modules_are_compared_by_a_measure_that_all_have() -> None:
    sound, still = modules(0.1, 0.0)
    assert quantity_of([sound, still]) == "relative"
    assert [size_of(one, "relative") for one in (sound, still)] == [pytest.approx(0.1), 0.0]
    assert quantity_of([sound, replace(still, base_norm=None)]) == "nominal"
    # Weights that are next to nothing are no measure.
    assert quantity_of([sound, replace(still, base_norm=0.2 * 8)]) == "nominal"
    unknown = replace(sound, scale=nan)
    assert quantity_of([unknown, still]) == "unscaled"
    assert size_of(unknown, "unscaled") == pytest.approx(size_of(sound, "nominal"))


def test_factors_that_several_modules_have() -> None:
    one, two, three = modules(0.1, 0.2, 0.3)
    assert sharing([one, two, three], "B") == set()
    assert sharing([one, replace(two, b=one.b), three], "B") == {"0", "1"}
    assert sharing([one, replace(two, b=one.b), three], "A") == set()


def test_adam_goes_no_further_than_its_bound() -> None:
    """Step by step, at a rate of one, under a gradient that first vanishes."""
    first = second = way = 0.0
    for update in range(1, 301):
        first = 0.9 * first + 0.1
        second = 0.999 * second + 0.001
        way += first / sqrt(second)
        assert straight_way(update) == pytest.approx(way)
    assert straight_way(300, bias_correction=True) == 300


def test_a_change_of_values() -> None:
    before = np.linspace(-1, 1, 10_001, dtype="f4")
    for dtype in ("f4", "f8"):
        moved = change(before.astype(dtype), (before * np.float32(1.25)).astype(dtype))
        assert moved.relative == pytest.approx(0.25, rel=1e-6)
    halves = change(before[:5000], before[:5000]) + change(before[5000:], 2 * before[5000:])
    assert halves.relative == pytest.approx(sqrt(0.5), rel=1e-3)
    broken = change(before, np.where(before > 0.5, np.nan, before))
    assert (broken.relative, broken.nonfinite) == (inf, 2500)
    assert change(before * 0, before).relative == inf


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_float32_are_exact(size: float) -> None:
    before = np.full(5000, size, "f4")
    assert change(before, 2 * before).relative == 1.0
