"""Factors of an adapter that are put otherwise before they are measured once more."""

import mlx.core as mx
import pytest

from mlxdoctor.twin.bench import _cannot_agree, _moved, _turned


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


@pytest.mark.parametrize(
    ("losses", "recorded", "given_up"),
    [
        ([5.0, 4.0], 6.0, False),
        # However high the others were.
        ([5.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.2], 4.0, True),
        # However low.
        ([9.0, 9.0, 9.0], 2.0, True),
        ([5.0, 4.5, 4.0], 3.0, False),
    ],
)
def test_a_reading_is_given_up_where_it_cannot_agree(
    losses: list[float], recorded: float, given_up: bool
) -> None:
    assert _cannot_agree(losses, 10, recorded) == given_up
