"""First losses beside those computed again; of real runs: tests/twin/test_replay.py."""

import math
from dataclasses import replace
from typing import Any

import pytest

from mlxdoctor.twin.levels import Level
from mlxdoctor.twin.reach import Reach
from mlxdoctor.twin.readings import readings
from mlxdoctor.twin.replay import Replay
from tests.conftest import check_called
from tests.given import outcome, severities

replay = check_called("replay")


def levels(before: float | None = 4.0, *reports: float) -> tuple[Level, ...]:
    """A log of 4.0, 3.0, 2.0 and so on, and what is computed; tolerances 0.02 and 0.2."""
    first = () if before is None else (Level("before", 0, 4.0, before, 0.02),)
    rest = (Level("report", 10 * n, 4.0 - n, value, 0.2) for n, value in enumerate(reports, 1))
    return (*first, *rest)


def said(configured: tuple[Level, ...], *reach: Reach, **more: Any) -> Any:
    fields = {"reading": None, "best": configured, **more}
    return outcome(replay, Replay((), configured, **fields), *reach)


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        ((4.0,), {}),
        ((4.0, 3.0, 2.0), {"as-computed": "info"}),
        ((4.019, 3.19, 1.81), {"as-computed": "info"}),
        ((4.03, 3.0, 2.0), {"differs": "warning"}),
        # Only the training is another: of an optimiser's options, say, or the order of the rows.
        ((4.0, 3.21, 2.0), {"trains-otherwise": "info"}),
        ((4.0, 3.9, 2.0), {"trains-otherwise": "info"}),
        ((4.49, 3.0, 2.0), {"differs": "warning"}),
        ((4.51, 3.0, 2.0), {"differs": "error"}),
        ((None, 3.6), {"differs": "error"}),
        ((math.nan, 3.0), {"differs": "error"}),
    ],
)
def test_first_losses_beside_those_computed(computed: Any, expected: dict[str, str]) -> None:
    found = said(levels(*computed))
    assert severities(found) == expected
    assert bool(found.seen) is (expected in ({}, {"as-computed": "info"}))


@pytest.mark.parametrize(("tuned", "severity"), [(2.1, "warning"), (2.7, "error")])
def test_a_loss_of_its_own_kind_that_teaches_as_much_is_no_error(
    tuned: float, severity: str
) -> None:
    configured = levels(4.51, 3.0, 2.0)
    reach = Reach((), "validation", 40, 5.0, tuned, 2.0, 0.05, 30, 1e-4)
    assert severities(said(configured, reach)) == {"differs": severity}
    # Better on held-out rows than the twin: what a reading only comes near to is nothing then.
    reading = next(each for each in readings() if each.code == "first-token-alone")
    near = {"reading": reading, "best": levels(4.4)}
    assert severities(said(levels(6.0), reach, **near)) != {}
    better = replace(reach, tuned=1.9)
    for found in (said(configured, better), said(levels(6.0), better, **near)):
        assert severities(found) == {}
        assert "On held-out rows the model is better" in found.seen[0].message
    # One report under a reading of the training alone agrees by chance.
    one = next(each for each in readings() if each.code == "one-batch")
    once = {"reading": one, "best": levels(4.0, 3.0)}
    assert severities(said(levels(4.0, 3.4), reach, **once)) == {"one-batch": "error"}
    assert severities(said(levels(4.0, 3.4), better, **once)) == {}
    # As good as mlx-lm's trainer makes it.
    found = said(configured, replace(reach, whole=tuned - 0.1))
    assert severities(found) == {}
    assert "as good as" in found.seen[0].message


@pytest.mark.parametrize(("whole", "expected"), [(2.0, {"as-computed": "info"}), (1.0, {})])
def test_losses_within_noise_prove_nothing_against_all_updates_made_again(
    whole: float, expected: dict[str, str]
) -> None:
    reach = Reach((), "validation", 40, 5.0, 2.0, 2.2, 0.05, 30, 1e-4, whole=whole)
    assert severities(said(levels(4.0, 3.1), reach)) == expected


@pytest.mark.parametrize("reading", readings(), ids=lambda each: each.clause)
def test_a_reading_that_agrees_is_named_unless_it_is_sound(reading: Any) -> None:
    found = said(levels(5.0, 4.0), reading=reading, best=levels(4.0, 3.0))
    assert severities(found) == ({} if reading.sound else {reading.code: "error"})
    texts = [*(each.message for each in found.seen), *(each.message for each in found.findings)]
    assert len(texts) == 1
    assert reading.clause in texts[0]
    assert "4.000, and mlx-lm computes 5.000" in texts[0]
    assert found.exhibits[0].clause == reading.clause


def test_a_log_without_its_start_decides_nothing() -> None:
    end = (Level("after", 100, 1.0, 1.0, 0.02),)
    assert said(end).status == "inconclusive"


def test_a_sound_reading_that_leaves_a_difference_is_not_called_sound() -> None:
    sound = next(each for each in readings() if each.sound)
    found = said(levels(5.0, 4.0), reading=sound, best=levels(4.3, 3.0))
    assert severities(found) == {"differs": "error"}
    assert not found.seen
