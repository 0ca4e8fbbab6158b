"""The tiers and the calibration: their fit on runs whose truth is known."""

import pytest

from fixtures.lab.judged import Judged, Subject, weighed
from fixtures.lab.weights import (
    Calibration,
    Run,
    Scored,
    fitted,
    fitted_tiers,
    probabilities,
    quality,
    scored,
    with_tiers,
)
from mlxdoctor.causes import load_causes, parse_causes
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.verdict import Verdict
from tests.ward.test_ablation import knowledge

CODE, CAUSE = "learning-rate.zero", "learning-rate-too-low"
TIERS = {"proof": 5.0, "strong": 3.0, "hint": 1.0, "against": -3.0}
TWO = knowledge(TIERS, first='proof = ["a-check.sign"]', second='hint = ["a-check.sign"]')


def judged(cause: str | None, code: str = CODE) -> Judged:
    finding = Finding(code, Severity.ERROR, "It is so.")
    outcomes = (Outcome(code.split(".", maxsplit=1)[0], Status.FOUND, findings=(finding,)),)
    run = Subject("run", "dev", "base", "data")
    return weighed(run, cause, "faulty" if cause else "healthy", {}, outcomes=outcomes, alarms={})


def test_probabilities_leave_room_for_none_of_them() -> None:
    shares = probabilities([4.0, 1.0], Calibration(1.0, 0.0))
    assert shares[0] > shares[1]
    assert sum(shares) < 1
    assert probabilities([4.0], Calibration(1.0, 4.0)) == [pytest.approx(0.5)]


def test_the_fit_finds_how_far_scores_can_be_trusted() -> None:
    # Ahead by 2, right in three of four.
    runs = [Scored("a", "dev", "static", (3.0, 1.0), 0 if n % 4 else 1) for n in range(800)]
    found = quality(runs, fitted(runs))
    assert found.stated == pytest.approx(0.75, abs=0.03)
    assert found.error < 0.03


def test_a_run_is_scored_by_the_cause_named_first() -> None:
    runs = [Run("ward dev", "static", judged(cause)) for cause in (CAUSE, "bad-data", None)]
    found = scored(runs, load_causes())
    assert [one.truth for one in found] == [0, None, None]
    assert all(one.scores[0] > 0 for one in found)


def test_the_tiers_that_fit_keep_a_proof_above_a_hint() -> None:
    knowledge = parse_causes(TWO)
    runs = [Run("ward dev", "static", judged("first", "a-check.sign")) for _ in range(20)]
    assert all(one.judged.verdict is Verdict.UNHEALTHY for one in runs)
    found = fitted_tiers(runs, knowledge, TIERS)
    assert found["hint"] < found["strong"] < found["proof"]
    changed = with_tiers(knowledge, TIERS, found)
    assert changed.causes["first"].weights["a-check.sign"] == found["proof"]
    assert changed.causes["second"].weights["a-check.sign"] == found["hint"]
