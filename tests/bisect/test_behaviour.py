"""Which saves are measured, and what counts as a broken model."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mlxdoctor.bisect.behaviour import (
    MEASURED,
    Behaviour,
    Floats,
    broken_of,
    measured_saves,
)

BASE = 5.0


def behaviour(loss: float, rows: int = 16) -> Behaviour:
    return Behaviour(losses=np.full(rows, loss), base_losses=np.full(rows, BASE))


def broken(*saves: Behaviour) -> dict[int, str]:
    return broken_of(dict(enumerate(saves)))


FALLING = [4.0 * 0.9**i for i in range(32)]


def searched(losses: Sequence[float]) -> dict[int, Behaviour]:
    """What is measured of saves with these losses, each once."""
    asked: list[int] = []

    def measure(place: int) -> Behaviour:
        asked.append(place)
        return behaviour(losses[place])

    seen = measured_saves(range(len(losses)), measure)
    assert len(asked) == len(seen)
    return seen


@pytest.mark.parametrize("broken_from", range(1, 32))
def test_every_break_is_found_in_a_few_loads(broken_from: int) -> None:
    seen = searched([*FALLING[:broken_from], *[4.6] * (32 - broken_from)])
    faults = broken_of(seen)
    assert max(seen.keys() - faults.keys()) == broken_from - 1
    assert broken_from in (*faults, 32)
    assert len(seen) <= MEASURED + 4


@pytest.mark.parametrize("lowest", [0, 1, 7, 36, 98, 99])
def test_of_a_hundred_saves_the_lowest_is_found_in_a_few(lowest: int) -> None:
    seen = searched([1 + abs(place - lowest) / 100 for place in range(100)])
    assert min(seen, key=lambda place: seen[place].loss) == lowest
    assert len(seen) <= MEASURED + 12


def test_up_to_sixteen_saves_are_all_measured() -> None:
    seen = searched([4.0, 1.0, 0.9, 4.6, 0.8, 4.6, 4.6, 0.7, 4.6, 4.6])
    assert list(broken_of(seen)) == [3, 5, 6, 8, 9]
    assert list(searched([1.0])) == [0]


NONE = np.empty(0)
WORSE = "its answers' loss is {:g}, and was {:g} before"
#: What it is -> saves, and why which of them are broken.
BROKEN: dict[str, tuple[list[Behaviour], dict[int, str]]] = {
    "lost before the first save": (
        [behaviour(6.0)] * 2,
        dict.fromkeys(range(2), "its answers' loss is 6, worse than the base model's 5"),
    ),
    "later ones are better": ([*map(behaviour, (4.5, 3.0, 1.0, 0.4))], {}),
    "worse": ([behaviour(1.0), behaviour(1.21)], {1: WORSE.format(1.21, 1.0)}),
    "hardly worse": ([behaviour(1.0), behaviour(1.19)], {}),
    # A high loss must rise by a share.
    "high and hardly worse": ([behaviour(3.9), behaviour(4.1)], {}),
    "high and worse": ([behaviour(3.9), behaviour(4.2)], {1: WORSE.format(4.2, 3.9)}),
    "not to be loaded, not finite": (
        [behaviour(1.0), Behaviour(NONE, NONE, failure="no such tensor"), behaviour(math.nan)],
        {
            1: "it cannot be put on the base model (no such tensor)",
            2: "its answers' loss is not finite",
        },
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_broken_and_why(kind: str) -> None:
    saves, faults = BROKEN[kind]
    assert broken(*saves) == faults


@pytest.mark.parametrize(
    ("losses", "is_broken"),
    [
        (np.full(16, 1.3), True),
        (np.where(np.arange(16) < 2, 4.0, 0.95), False),
        # All of a few must agree.
        (np.full(4, 3.0), True),
        (np.array([9.0, 1.1, 1.1, 0.9]), False),
    ],
)
def test_rows_must_agree(losses: Floats, is_broken: bool) -> None:
    rows = len(losses)
    worse = Behaviour(losses, np.full(rows, BASE))
    assert worse.loss >= 1.3
    assert bool(broken(behaviour(1.0, rows=rows), worse)) is is_broken
