"""Which real runs are reproduced, and what the page says of what came of it."""

import pytest

from fixtures.lab.real.runs import HALVES, Half
from fixtures.lab.reproduction import WRONG, drawn
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
