"""What is said of the saved model's loss beside the one that the log ends with."""

import math
from dataclasses import replace
from typing import Any

import pytest

from mlxdoctor.finding import Status
from mlxdoctor.twin.bench import Scale
from mlxdoctor.twin.levels import Level
from mlxdoctor.twin.reach import Reach
from mlxdoctor.twin.replay import Replay
from tests.conftest import check_called
from tests.given import outcome, severities

end_state = check_called("end-state")
GOOD = Reach((), "validation", 40, 4.0, 0.64, 0.8, 0.01, 30, 1e-4)


def said(
    logged: tuple[float | None, float],
    computed: tuple[float, float],
    tolerance: float = 0.02,
    reach: tuple[Reach, ...] = (),
    **more: Any,
) -> Any:
    before = () if logged[0] is None else (Level("before", 0, logged[0], computed[0], 0.02),)
    levels = (*before, Level("after", 100, logged[1], computed[1], tolerance))
    return judged(levels, *reach, **more)


def judged(levels: tuple[Level, ...], *reach: Reach, **more: Any) -> Any:
    return outcome(end_state, Replay((), levels, None, levels, **more), *reach)


@pytest.mark.parametrize(
    ("logged", "computed", "expected"),
    [
        ((4.0, 0.3), (4.0, 0.3), {"as-logged": "info"}),
        ((4.0, 0.3), (4.0, 0.319), {"as-logged": "info"}),
        ((4.0, 0.3), (4.0, 0.35), {"worse-than-logged": "warning"}),
        ((4.0, 0.3), (4.0, 0.6), {"worse-than-logged": "warning"}),
        ((4.0, 0.3), (4.0, 0.64), {"worse-than-logged": "error"}),
        # A tenth of the loss is not told.
        ((4.0, 1.0), (4.0, 1.09), {"as-logged": "info"}),
        ((4.0, 1.0), (4.0, 1.11), {"worse-than-logged": "warning"}),
        # Another base model; a tuned model that agrees has its base.
        ((4.2, 0.3), (4.0, 1.5), {"base-differs": "warning"}),
        ((4.2, 0.3), (4.0, 2.5), {"base-differs": "warning", "worse-than-logged": "error"}),
        ((4.2, 0.3), (4.0, 0.3), {"as-logged": "info"}),
        # Losses of another kind.
        ((3.0, 0.3), (4.0, 2.5), {"base-differs": "warning"}),
        ((3.0, 0.3), (4.0, 4.5), {"base-differs": "warning", "worse-than-logged": "error"}),
    ],
)
def test_the_end_beside_the_log(
    logged: tuple[float, float], computed: tuple[float, float], expected: dict[str, str]
) -> None:
    found = said(logged, computed)
    assert severities(found) == expected
    assert bool(found.seen) is (expected == {"as-logged": "info"})


def test_few_batches_do_not_tell_whether_half_of_what_was_learned_is_lost() -> None:
    found = said((4.2, 3.5), (4.2, 3.92), tolerance=0.5)
    assert "too few batches" in found.reason
    assert severities(said((4.2, 3.5), (4.2, 3.8), tolerance=0.5)) == {"as-logged": "info"}


def test_without_a_loss_before_training_it_cannot_be_told_how_much_was_learned() -> None:
    end = Level("after", 100, 0.3, 0.64, 0.02)
    report = Level("report", 10, 3.0, 3.0, 0.1)
    assert severities(judged((report, end))) == {"worse-than-logged": "warning"}
    # Nor, without any first loss, whether it is this loss that the trainer reports.
    alone = judged((end,))
    assert (alone.findings, alone.status) == ((), Status.INCONCLUSIVE)
    assert "no first loss" in alone.reason
    agreeing = Level("after", 100, 0.3, 0.3, 0.02)
    assert severities(judged((agreeing,))) == {"as-logged": "info"}


def test_what_decides_nothing() -> None:
    assert "over other targets" in said((4.0, 0.5), (4.0, 0.3)).reason
    assert "not finite" in said((4.0, 0.5), (4.0, math.nan)).reason
    start = (Level("before", 0, 4.0, 4.0, 0.02),)
    assert "no loss of the end" in judged(start).reason


def test_another_scale_the_base_alone_and_factors_stored_the_other_way_round() -> None:
    found = said((4.0, 0.3), (4.0, 2.0), scale=Scale(40.0, 2.0, 0.301))
    assert severities(found) == {"other-scale": "error"}
    assert found.findings[0].measured["advised_scale"] == 2.0
    alone = said((None, 0.3), (4.0, 2.0), scale=Scale(20.0, 0.0, 0.301))
    assert severities(alone) == {"base-has-it": "error"}
    for way in ("turned", "moved"):
        told = severities(said((4.0, 0.3), (4.0, 5.0), rearranged=way))
        assert told == {f"factors-{way}": "error"}


def test_a_trainer_with_a_loss_of_its_own_kind_that_is_as_good() -> None:
    good = replace(GOOD, whole=0.6)
    assert said((4.2, 0.3), (4.0, 0.64), reach=(good,)).seen
    assert severities(said((4.2, 0.3), (4.0, 0.64), reach=(good,))) == {}
    # It computes mlx-lm's loss: then the file is not what was trained.
    assert severities(said((4.0, 0.3), (4.0, 0.64), reach=(good,))) == {
        "worse-than-logged": "error"
    }
    worse = replace(good, whole=0.3)
    assert severities(said((4.2, 0.3), (4.0, 0.64), reach=(worse,))) != {}
    # Of the answers alone, or right.
    low = replace(worse, tuned=0.2)
    assert severities(said((4.2, 0.3), (4.0, 0.64), reach=(low,))) == {}
    assert severities(said((4.2, 0.3), (4.0, 0.64), reach=(replace(worse, right=0.95),))) == {}


@pytest.mark.parametrize(("computed", "severity"), [(0.346, "info"), (1.0, "error")])
def test_an_earlier_save_that_is_nearly_as_good_is_no_fault(computed: float, severity: str) -> None:
    found = said((4.0, 0.312), (4.0, computed), saved_at=300)
    assert severities(found) == {"saved-earlier": severity}
