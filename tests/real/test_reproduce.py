"""Which real runs are reproduced, and what the page says of what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.lab.real.runs import HALVES, Half
from fixtures.lab.reproduction import WRONG, drawn, summary_of, table_of
from mlxdoctor.causes import load_causes

CAUSES = load_causes().causes


@pytest.mark.parametrize("half", HALVES)
def test_twenty_runs_of_as_many_causes_that_an_experiment_can_show(half: Half) -> None:
    runs = drawn(half, 20)
    assert runs == drawn(half, 20)
    assert len(runs) == len({one.cause for one in runs}) == 20
    assert {one.half for one in runs} == {half}
    for one in runs:
        assert one.cause is not None
        assert not CAUSES[one.cause].no_experiment
    assert drawn(half, 12) == runs[:12]


def test_two_wrong_causes_are_asked_for_of_each() -> None:
    for one in (run for half in HALVES for run in drawn(half, 1000)):
        wrong = WRONG[one.cause]
        assert len(set(wrong)) == 2
        assert one.cause not in wrong
        assert CAUSES.keys() >= set(wrong)


def result(name: str, verdict: str, wrong: str = "refuted") -> dict[str, Any]:
    return {
        "name": name,
        "cause": "bad-data",
        "verdict": "unhealthy",
        "verdicts": {"bad-data": verdict},
        "forced": {"overfitting": wrong, "labels-misaligned": "undecided"},
        "agreement": {"agrees": True, "difference": 0.0004},
        "cost": {"experiments": 4, "iterations": 200, "seconds": 29.0},
        "cpu": 30.0,
    }


def test_the_page_counts_what_is_confirmed() -> None:
    results = [result("first", "confirmed"), result("second", "undecided", wrong="confirmed")]
    text = "\n".join(summary_of(results, 1))
    assert "The true cause is confirmed in 1 of 2 faulty runs." in text
    assert "A wrong cause is confirmed in 1 cases: second: overfitting." in text
    assert "Of 4 wrong causes that were asked for, 1 are refuted, 2 are undecided, 1 are" in text
    assert "1 more runs were not reproduced" in text
    row = (
        "| first | bad-data | confirmed | none | overfitting: refuted, labels-misaligned: undecided"
    )
    assert f"{row} | same to 0.0004 | 4 | 200 | 30 | 29 |" in table_of(results)
