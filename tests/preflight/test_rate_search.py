"""Which rates are tried, and what is made of a change of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from mlxdoctor.measure.rate_range import RatePoint, RateRange
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from mlxdoctor.twin.rates import (
    FINE,
    effect_of,
    judged,
    place_of,
    search_rates,
)
from mlxdoctor.twin.trials import changes
from tests.conftest import check_called

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

    def attempt(rate: float) -> list[RatePoint]:
        if len(points) == most:
            return []
        points.append(RatePoint(rate, UNTOUCHED + change(rate), change(rate), 0.01))
        return judged(points, UNTOUCHED)

    search_rates(start, attempt)
    return judged(points, UNTOUCHED)


@pytest.mark.parametrize("limit", [2e-5, 1e-3, 4e-2])
@pytest.mark.parametrize("start", [1e-6, 3e-4, 1e-2])
def test_limit_is_found_from_wherever_the_search_begins(limit: float, start: float) -> None:
    points = tried(of_a_model(limit), start)
    learns = [one.rate for one in points if one.effect == "learns"]
    above = [one.rate for one in points if one.rate > max(learns)]
    assert max(learns) <= limit < min(above)
    assert min(above) / max(learns) <= FINE
    assert len(points) <= 12


def test_model_that_nothing_moves_is_given_up() -> None:
    points = tried(lambda rate: 0.0 if rate < 1e-2 else 2.0, 1e-4)
    assert {one.effect for one in points} == {"still", "harms"}
    assert len(points) <= 12


def test_time_that_is_up_ends_the_search() -> None:
    assert len(tried(of_a_model(1e-3), 1e-6, most=2)) == 2


def test_effect_is_judged_beside_noise_and_the_best() -> None:
    def effect(change: float, noise: float = 0.01, leaps: int = 0) -> str:
        point = RatePoint(1e-3, UNTOUCHED + change, change, noise, leaps)
        return effect_of(point, UNTOUCHED, -3.0)

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


@pytest.mark.parametrize(
    ("rate", "planned_updates", "fails_at", "place"),
    [
        (2e-3, 500, 1.5e-3, "too-high"),
        (9e-4, 500, 1.5e-3, "near-the-limit"),
        (2e-3, 500, None, "unknown"),
        (3e-4, 500, 1.5e-3, "sound"),
        (3e-4, 12, 1.5e-3, "sound"),
        (2e-5, 500, 1.5e-3, "low"),
        (2e-5, 300, 1.5e-3, "too-low"),
        (3e-8, 9000, 1.5e-3, "too-low"),
    ],
)
def test_where_the_configured_rate_stands(
    rate: float, planned_updates: int, fails_at: float | None, place: str
) -> None:
    rates = RateRange(
        configured=rate,
        planned_updates=planned_updates,
        untouched=4.0,
        rows=32,
        split="validation",
        updates=24,
        points=(
            RatePoint(1e-3, 1.25, -2.75, 0.1, effect="learns"),
            RatePoint(1.5e-3, 4.6, 0.6, 0.1, effect="harms"),
        ),
        largest=1e-3,
        fails_at=fails_at,
        advised=3.3e-4,
    )
    assert place_of(rates) == place
    run = Run.planned(planned_config(None, {"learning_rate": rate}))
    run = run.having(replace(rates, place=place))
    outcome = check_called("rate-range").run(run)
    severity = {"too-high": "error", "too-low": "error", "sound": "", "unknown": ""}
    expected = severity.get(place, "warning")
    assert [one.severity for one in outcome.findings] == ([expected] if expected else [])
    if outcome.findings:
        assert outcome.findings[0].fix == "set learning_rate to 0.00033"
        assert outcome.findings[0].message.endswith("from 4.00 to 1.25.")
