"""How a budget of time divides work: what fits, in an order whose beginnings are fair."""

import math

import pytest

from mlxdoctor.safety.time_budget import Pace, TimeBudget, by_turns, spread


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def measured(budget: TimeBudget, clock: Clock, costs: list[float], share: float = 1.0) -> list[int]:
    """The items that are measured where each takes as many seconds as it costs."""
    done: list[int] = []
    for stage in budget.stages(costs, share):
        done.extend(stage)
        clock.now += sum(costs[i] for i in stage)
    return done


def test_without_a_limit_everything_is_measured(clock: Clock) -> None:
    budget = TimeBudget(None, clock)
    assert measured(budget, clock, [9.0] * 40) == list(range(40))
    assert budget.left == math.inf
    assert budget.said(3, 40, "rows were measured") == ""


@pytest.mark.parametrize(
    ("seconds", "costs", "count"),
    [
        # A tenth of the time is for the rest: files, and the report.
        (4.0, [1.0] * 20, 4),
        (11.2, [1.0] * 20, 10),
        (12.5, [1.0] * 20, 11),
        (40.0, [1.0] * 20, 20),
        # Dear items are known beforehand.
        (11.0, [1.0] * 6 + [9.0], 6),
    ],
)
def test_what_fits_is_measured_and_the_first_items_first(
    clock: Clock, seconds: float, costs: list[float], count: int
) -> None:
    assert measured(TimeBudget(seconds, clock), clock, costs) == list(range(count))


def test_the_first_stage_is_made_while_anything_is_left(clock: Clock) -> None:
    budget = TimeBudget(1.0, clock)
    assert measured(budget, clock, [1.0] * 20) == [0, 1, 2, 3]
    assert budget.left == 0
    assert measured(budget, clock, [1.0] * 20) == []
    assert budget.spent == "the time budget of 1 s was spent before; raise it with --budget"


def test_a_share_leaves_time_for_others(clock: Clock) -> None:
    budget = TimeBudget(20.0, clock)
    assert len(measured(budget, clock, [1.0] * 40, share=0.5)) == 9
    assert budget.left == 9
    said = budget.said(9, 1040, "rows were measured")
    assert said == "9 of 1,040 rows were measured: the time budget of 20 s"


def test_training_has_as_long_again(clock: Clock) -> None:
    budget = TimeBudget(20.0, clock)
    clock.now += 12.0
    assert (budget.left, budget.left_for_training) == (6.0, 24.0)
    clock.now += 30.0
    assert budget.left_for_training == 0.0
    assert TimeBudget(None, clock).left_for_training == 60.0


@pytest.mark.parametrize(
    ("first", "each", "deadline", "until", "made"),
    [
        # All that are needed fit; more are made until there are enough of them.
        (1.0, 1.0, 10.0, None, 11),
        (1.0, 1.0, 10.0, 2.0, 4),
        (1.0, 1.0, 10.0, 6.5, 7),
        # The first one takes long, and the others don't.
        (7.0, 1.0, 10.0, None, 5),
        # Four of them don't fit: that is seen after two.
        (1.0, 4.0, 10.0, None, 2),
        (11.0, 1.0, 10.0, None, 1),
    ],
)
def test_steps_that_cannot_be_enough_are_not_made(
    first: float, each: float, deadline: float, until: float | None, made: int
) -> None:
    clock = Clock()
    begun = clock.now
    pace = Pace(4, begun + deadline, None if until is None else begun + until, clock)
    clock.now += first
    done = 1
    while not pace.is_over():
        clock.now += each
        done += 1
    assert done == made
    assert pace.is_enough is (made >= 4)


def test_each_beginning_of_a_spread_order_is_spread() -> None:
    assert spread(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    for count in (0, 1, 2, 5, 16, 33):
        assert sorted(spread(count)) == list(range(count))
    assert max(spread(33)[:8]) > 24


def test_groups_take_turns() -> None:
    assert by_turns([4, 2], 2) == [0, 2, 4, 5, 1, 3]
    assert by_turns([], 2) == []
    assert sorted(by_turns([16, 0, 5], 8)) == list(range(21))
