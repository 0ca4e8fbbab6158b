"""Which rates are tried, and what is made of a change of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from mlxdoctor.measure.rate_range import RatePoint, RateRange
from mlxdoctor.preflight.rate_search import RateLimits, changes, effect_of, judged, search
from mlxdoctor.preflight.rate_sentences import conclude

LIMITS = RateLimits()
UNTOUCHED = 4.0


def of_a_model(limit: float) -> Callable[[float], float]:
    """The change of the loss in a model that learns best at a quarter of a limit."""

    def change(rate: float) -> float:
        if rate > 30 * limit:
            return math.nan
        if rate > limit:
            return 0.5
        return -3.0 * min(1.0, (rate * 8 / limit) ** 0.5)

    return change


def tried(change: Callable[[float], float], start: float, most: int = 30) -> list[RatePoint]:
    """Every rate that a search tries."""
    points: list[RatePoint] = []

    def attempt(rate: float) -> RatePoint | None:
        if len(points) == most:
            return None
        found = change(rate)
        points.append(RatePoint(rate, UNTOUCHED + found, found, 0.01, 24, 0, "still"))
        return next(one for one in judged(points, UNTOUCHED, LIMITS) if one.rate == rate)

    search(start, attempt, LIMITS)
    return judged(points, UNTOUCHED, LIMITS)


@pytest.mark.parametrize("limit", [2e-5, 1e-3, 4e-2])
@pytest.mark.parametrize("start", [1e-6, 3e-4, 1e-2])
def test_limit_is_found_from_wherever_the_search_begins(limit: float, start: float) -> None:
    points = tried(of_a_model(limit), start)
    learns = [one.rate for one in points if one.effect == "learns"]
    above = [one.rate for one in points if one.rate > max(learns)]
    assert max(learns) <= limit < min(above)
    assert min(above) / max(learns) <= LIMITS.fine
    assert len(points) <= 12


def test_model_that_nothing_moves_is_given_up() -> None:
    points = tried(lambda rate: 0.0 if rate < 1e-2 else 2.0, 1e-4)
    assert {one.effect for one in points} == {"still", "harms"}
    assert len(points) <= 12


def test_time_that_is_up_ends_the_search() -> None:
    assert len(tried(of_a_model(1e-3), 1e-6, most=2)) == 2


def test_effect_is_judged_beside_noise_and_the_best() -> None:
    def effect(change: float, noise: float = 0.01, leaps: int = 0) -> str:
        point = RatePoint(1e-3, UNTOUCHED + change, change, noise, 24, leaps, "still")
        return effect_of(point, UNTOUCHED, -3.0, LIMITS)

    assert effect(-2.01) == "learns"
    assert effect(-1.99) == "lags"
    assert effect(-0.041) == "lags"
    assert effect(-0.039) == "still"
    assert effect(-0.3, noise=0.11) == "still"
    assert effect(0.5) == "harms"
    assert effect(math.nan) == "lost"
    assert effect(-2.5, leaps=1) == "learns"
    assert effect(-2.5, leaps=2) == "leaps"


def test_change_is_that_of_the_same_rows() -> None:
    # Batches differ by far more than the change, which is the same in each.
    mean, error = changes((1.5, 4.5, 7.5), (2.0, 5.0, 8.0), (10.0, 20.0, 10.0))
    assert mean == pytest.approx(-0.5)
    assert error == pytest.approx(0.0)
    assert math.isnan(changes((), (2.0,), (10.0,))[0])


def test_change_weighs_tokens() -> None:
    assert changes((1.0, 2.0), (2.0, 2.0), (30.0, 10.0))[0] == pytest.approx(-0.75)


def range_of(*points: RatePoint, **values: object) -> RateRange:
    """A result, with its sentences."""
    given = {"configured": 1e-3, "scale": 20.0, "untouched": 4.0, "rows": 32, "updates": 24}
    return conclude(
        RateRange(points=points, measured_on="validation rows", **{**given, **values})  # type: ignore[arg-type]
    )


def test_sentences_hold_the_figures() -> None:
    points = (
        RatePoint(1e-4, 3.0, -1.0, 0.1, 24, 0, "learns"),
        RatePoint(1e-3, 1.25, -2.75, 0.1, 24, 0, "learns"),
        RatePoint(1e-3, 1.5, -2.5, 0.1, 24, 0, "learns", other_order=True),
        RatePoint(1.5e-3, 4.6, 0.6, 0.1, 24, 0, "harms"),
    )
    found = range_of(
        *points,
        largest_that_learns=1e-3,
        fails_at=1.5e-3,
        advised=3.3e-4,
        learns_from=1e-4,
        place="near-limit",
    )
    assert found.conclusions == (
        "The largest rate that learns at scale 20 is about 0.001: 24 updates took the loss of 32 "
        "validation rows from 4.00 to 1.50.",
        "At 0.0015 the loss rises to 4.60.",
        "Use 0.00033, which is 3 times lower: a whole run is longer than this test.",
        "Even the lowest rate tried, 0.0001, lowered the loss visibly.",
        "The configured rate, 0.001, is so near the largest that it may not hold.",
    )
    assert not found.untold


def test_nothing_learned_is_said_and_advises_nothing() -> None:
    still = RatePoint(1e-3, 4.0, 0.0, 0.1, 24, 0, "still")
    harms = RatePoint(1e-2, 5.0, 1.0, 0.1, 24, 0, "harms")
    found = range_of(still, harms)
    assert found.conclusions == ()
    assert found.untold.startswith("No rate tried from 0.001 to 0.01 lowered the loss")


def test_hopeless_trial_is_given_up_but_no_slow_start() -> None:
    from mlxdoctor.preflight.rate_trials import is_hopeless

    untouched = (2.0,) * 12
    assert is_hopeless((2.5,) * 12, untouched)
    assert not is_hopeless((2.5,) * 9, untouched[:9])
    assert not is_hopeless((2.5,) * 11 + (1.9,), untouched)
    assert is_hopeless((2.0, math.nan), ())
    assert not is_hopeless((9.0,) * 12, ())
