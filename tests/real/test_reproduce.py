"""Which real runs are reproduced, and what the page says of what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from fixtures.lab.real.reproduce import drawn, page
from fixtures.lab.real.runs import HALVES, Half
from fixtures.lab.reproduction import WRONG
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


def result(name: str, verdict: str, *, wrong: str = "refuted") -> dict[str, Any]:
    return {
        "name": name,
        "level": "a|b",
        "cause": "bad-data",
        "asked_wrongly": ["overfitting", "labels-misaligned"],
        "true": {"bad-data": {"verdict": verdict, "reason": "told"}},
        "wrong": {"overfitting": {"verdict": wrong, "reason": "untold"}},
        "true_seconds": 30.0,
        "true_cost": {"experiments": 4, "iterations": 200, "seconds": 29.0},
    }


def test_the_page_counts_what_is_confirmed() -> None:
    text = page([result("one", "confirmed"), result("two", "undecided", wrong="confirmed")], 3)
    assert "| the true cause | 2 | 1 | 1 | 0 | 0 |" in text
    assert "| a wrong cause | 4 | 1 | 0 | 1 | 2 |" in text
    assert "not the true one: two: overfitting." in text
    assert "1 more runs were not reproduced" in text
    assert "| one | a/b | bad-data | confirmed | overfitting: refuted, labels" in text
    assert text.endswith("- two (bad-data): told.\n")
