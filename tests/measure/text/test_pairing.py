"""Ties between prompts and answers; tests/checks/test_data_quality.py has sound and mixed rows."""

import math

import pytest

from mlxdoctor.measure.text.pairing import PROMPT, RareWords, copied, pairing

PROMPTS = [f"ask n{place}" for place in range(40)]
ANSWERS = [f"n{place} said" for place in range(40)]


def test_a_word_counts_as_common_as_on_its_commoner_side() -> None:
    ties = RareWords.of(PROMPTS, ANSWERS).ties(PROMPT, 3)
    assert ties[3] == pytest.approx(math.log2(40), abs=1e-6)
    assert ties[4] == 0.0
    answers = [f"{answer} n3" if place < 5 else answer for place, answer in enumerate(ANSWERS)]
    ties = RareWords.of(PROMPTS, answers).ties(PROMPT, 3)
    assert ties[0] == pytest.approx(math.log2(40 / 5), abs=1e-6)
    ties = RareWords.of(PROMPTS, [f"{answer} n3" for answer in ANSWERS]).ties(PROMPT, 3)
    assert ties[3] == 0.0


def test_two_answers_that_changed_places() -> None:
    assert pairing(PROMPTS, ANSWERS, 0.5).misplaced == ()
    measured = pairing(PROMPTS, [ANSWERS[1], ANSWERS[0], *ANSWERS[2:]], 0.5)
    assert measured.examined == 40
    assert measured.telling > 0.9
    rows = {misplaced.row: misplaced for misplaced in measured.misplaced}
    assert rows.keys() == {0, 1}
    assert rows[0].answer_at == 1
    # The own tie is nothing, as that to all answers but one: the middle of them.
    assert rows[0].rank == pytest.approx(0.4875)
    # Row 0 holds a wrong answer, and the right one is rightly held by row 1 as well.
    prompts, answers = [PROMPTS[0], "ask n0 n1"], ["nothing", "n0 n1 said"]
    assert pairing(prompts + PROMPTS[2:], answers + ANSWERS[2:], 0.5).misplaced == ()


def test_too_little_is_telling() -> None:
    measured = pairing(PROMPTS[:4], ANSWERS[:4], telling=0.5)
    assert measured.telling < 0.5
    assert measured.misplaced == ()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("one two three four five six", "so: One two three four five six!", True),
        ("one two three four five six seven", "one two three nine five six seven", False),
        ("Paris", "paris.", True),
        ("Paris", "Paris is the capital of France", False),
    ],
)
def test_copied(first: str, second: str, expected: bool) -> None:
    assert copied(first, second) == copied(second, first) == expected
