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
from mlxdoctor.measure.text.statistics import rate

BASE = 5.0


def behaviour(loss: float, *, collapsed: bool = False, rows: int = 16) -> Behaviour:
    return Behaviour(
        losses=np.full(rows, loss),
        base_losses=np.full(rows, BASE),
        collapsed=rate([collapsed] * 18, [False] * 18),
    )


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


def test_lost_before_the_first_save() -> None:
    faults = broken(*[behaviour(6.0)] * 3)
    assert list(faults) == [0, 1, 2]
    assert "worse than the base model's 5" in faults[0]


def test_early_saves_are_not_broken_because_later_ones_are_better() -> None:
    assert not broken(*map(behaviour, (4.5, 3.0, 1.0, 0.4)))


@pytest.mark.parametrize(
    ("before", "after", "is_broken"),
    [
        (1.0, 1.21, True),
        (1.0, 1.19, False),
        (1.0, 1.14, False),
        # A high loss must rise by a share.
        (3.9, 4.1, False),
        (3.9, 4.2, True),
    ],
)
def test_how_much_worse_than_before_is_broken(before: float, after: float, is_broken: bool) -> None:
    told = {1: f"its answers' loss is {after:g}, and was {before:g} before"}
    assert broken(behaviour(before), behaviour(after)) == (told if is_broken else {})


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


def test_a_collapse_breaks_whatever_the_loss() -> None:
    faults = broken(behaviour(1.0), behaviour(0.9, collapsed=True))
    assert faults == {1: "it answers 18 of 18 prompts with a few tokens or a loop"}


def test_what_cannot_be_loaded_or_is_not_finite() -> None:
    none = np.empty(0)
    failed = Behaviour(none, none, failure="ValueError: no such tensor")
    assert broken(behaviour(1.0), failed, behaviour(math.nan)) == {
        1: "it cannot be put on the base model (ValueError: no such tensor)",
        2: "its answers' loss is not finite",
    }
