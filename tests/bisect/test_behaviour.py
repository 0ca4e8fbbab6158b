"""The search over saves, and what counts as a broken model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mlxdoctor.bisect.behaviour import (
    Behaviour,
    Limits,
    Search,
    search,
)
from mlxdoctor.measure.text.prompt_rates import rate

LIMITS = Limits()
BASE = 5.0


def behaviour(
    loss: float, *, collapsed: bool = False, rows: int = 16, spread: float = 0.0
) -> Behaviour:
    return Behaviour(
        losses=np.full(rows, loss),
        base_losses=np.full(rows, BASE),
        collapsed=rate([collapsed] * 18, [False] * 18, LIMITS),
    )


def searched(losses: Sequence[float], hint: int | None = None) -> tuple[Search, list[int]]:
    asked: list[int] = []

    def measure(place: int) -> Behaviour:
        asked.append(place)
        return behaviour(losses[place])

    return search(len(losses), measure, hint, LIMITS), asked


FALLING = [4.0 * 0.9**i for i in range(32)]


@pytest.mark.parametrize("broken_from", range(1, 32))
def test_every_break_is_found_in_a_few_loads(broken_from: int) -> None:
    losses = [*FALLING[:broken_from], *[4.6] * (32 - broken_from)]
    found, asked = searched(losses)
    assert found.last_good == broken_from - 1
    assert found.held
    assert len(asked) == len(set(asked)) <= 3 + math.log2(32) + 2


def test_a_sound_run_needs_four_loads() -> None:
    found, asked = searched(FALLING)
    assert (found.last_good, found.best) == (31, 31)
    assert not found.broken
    # The ends and the middle, and then the neighbour of the newest.
    assert sorted(asked) == [0, 16, 30, 31]


def test_the_log_says_where_to_look_first() -> None:
    losses = [*FALLING[:9], *[4.6] * 23]
    found, asked = searched(losses, hint=8)
    assert found.last_good == 8
    assert asked[2] == 8
    assert len(asked) <= 9


def test_lost_before_the_first_save() -> None:
    found, asked = searched([6.0] * 32)
    assert found.last_good is None
    assert found.best is None
    assert len(asked) <= 5
    assert "worse than the base model's 5" in found.broken[0]


def test_early_saves_are_not_broken_because_later_ones_are_better() -> None:
    found, _ = searched([4.5, 3.0, 1.0, 0.4])
    assert not found.broken


def test_a_run_that_recovers_is_measured_whole() -> None:
    losses = [4.0, 1.0, 0.9, 4.6, 0.8, 4.6, 4.6, 0.7, 4.6, 4.6]
    found, asked = searched(losses, hint=5)
    assert not found.held
    assert sorted(asked) == list(range(len(losses)))
    assert found.last_good == 7
    assert sorted(found.broken) == [3, 5, 6, 8, 9]


def test_one_save_and_two() -> None:
    assert searched([1.0])[0].last_good == 0
    assert searched([6.0])[0].last_good is None
    assert searched([1.0, 4.6])[0].last_good == 0
    assert searched([1.0, 0.9])[0].last_good == 1


@pytest.mark.parametrize(("loss", "broken"), [(1.21, True), (1.19, False), (1.14, False)])
def test_how_much_worse_than_before_is_broken(loss: float, broken: bool) -> None:
    found, _ = searched([1.0, loss])
    assert bool(found.broken) is broken
    if broken:
        assert found.broken[1] == "its answers' loss is 1.21, and was 1 before"


@pytest.mark.parametrize(("before", "after", "broken"), [(3.9, 4.1, False), (3.9, 4.2, True)])
def test_a_high_loss_must_rise_by_a_share(before: float, after: float, broken: bool) -> None:
    assert bool(searched([before, after])[0].broken) is broken


def test_rows_must_agree() -> None:
    better, worse = behaviour(1.0), behaviour(1.3)
    mixed = Behaviour(np.where(np.arange(16) < 2, 4.0, 0.95), worse.base_losses)
    found = search(2, [better, mixed].__getitem__, None, LIMITS)
    assert mixed.loss > 1.3
    assert not found.broken
    assert search(2, [better, worse].__getitem__, None, LIMITS).broken


def test_few_rows_must_agree_all() -> None:
    better, worse = behaviour(1.0, rows=4), behaviour(3.0, rows=4)
    assert search(2, [better, worse].__getitem__, None, LIMITS).broken
    mixed = Behaviour(np.array([9.0, 1.1, 1.1, 0.9]), worse.base_losses)
    assert not search(2, [better, mixed].__getitem__, None, LIMITS).broken


def test_a_collapse_breaks_whatever_the_loss() -> None:
    states = [behaviour(1.0), behaviour(0.9, collapsed=True)]
    found = search(2, states.__getitem__, None, LIMITS)
    assert found.broken == {1: "it answers 18 of 18 prompts with a few tokens or a loop"}
    assert found.last_good == 0


def test_what_cannot_be_loaded_or_is_not_finite() -> None:
    none = np.empty(0)
    states = [
        behaviour(1.0),
        Behaviour(none, none, failure="ValueError: no such tensor"),
        behaviour(math.nan),
    ]
    found = search(3, states.__getitem__, None, LIMITS)
    assert found.broken == {
        1: "it cannot be put on the base model (ValueError: no such tensor)",
        2: "its answers' loss is not finite",
    }
    assert found.last_good == 0
