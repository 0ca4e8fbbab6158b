"""Factors of an adapter that are put otherwise before they are measured once more."""

import mlx.core as mx
import pytest

from mlxdoctor.twin.bench import _moved, _turned


def stored(*values: float) -> dict[str, tuple[mx.array, mx.array]]:
    """A of (4, 2) and B of (2, 4), filled, for each of as many layers."""
    return {
        f"model.layers.{layer}.self_attn.q_proj": (mx.full((4, 2), layer), mx.full((2, 4), value))
        for layer, value in enumerate(values)
    }


@pytest.mark.parametrize(
    ("values", "moved"),
    [
        ((1.0, 2.0, 3.0, 0.0), [0.0, 1.0, 2.0, 3.0]),
        ((1.0, 2.0, 0.0, 0.0), [0.0, 0.0, 1.0, 2.0]),
        # The last layers have theirs, or none has.
        ((0.0, 2.0, 3.0), []),
        ((0.0, 0.0), []),
        ((), []),
    ],
)
def test_factors_of_earlier_layers(values: tuple[float, ...], moved: list[float]) -> None:
    found = _moved(stored(*values))
    assert [b.max().item() for _, b in found.values()] == moved
    assert all(a.shape == (4, 2) for a, _ in found.values())


def test_factors_that_are_transposed() -> None:
    ((a, b),) = _turned(stored(1.0)).values()
    assert (a.shape, b.shape) == ((2, 4), (4, 2))
