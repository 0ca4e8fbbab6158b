"""When an answer is collapsed, for the check and for a save alike."""

from __future__ import annotations

import pytest

from mlxdoctor.judge.collapse import is_collapsed, is_loop


@pytest.mark.parametrize(
    ("content", "collapsed"),
    [
        ([5] * 7, False),
        ([5] * 8, True),
        ([5] * 9 + [6], True),
        ([5] * 4 + [6, 7, 8, 9], False),
        ([1, 2, 3, 4] * 4, True),
        ([1, 2, 3, 4, 5, 6, 7, 8] * 2, False),
        ([1, 2, 1, 3, 2, 1, 4, 3, 2, 4, 1, 3, 1, 2, 4, 3], True),
        (list(range(40)), False),
    ],
)
def test_collapsed_answers(content: list[int], collapsed: bool) -> None:
    assert is_collapsed(content) is collapsed


@pytest.mark.parametrize(("tail", "loops"), [(8, True), (7, False)])
def test_a_loop_is_as_long_as_the_shortest_answer_that_is_judged(tail: int, loops: bool) -> None:
    assert is_loop([*range(20, 34 - tail), *[5] * tail]) is loops
