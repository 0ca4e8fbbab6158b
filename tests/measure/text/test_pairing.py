"""Ties between prompts and answers."""

from __future__ import annotations

import math

import pytest

from mlxdoctor.measure.text.pairing import ANSWER, PROMPT, RareWords, copied, pairing


def numbered(count):
    """Prompts and answers tied by one number each."""
    prompts = [f"ask n{at}" for at in range(count)]
    return prompts, [f"n{at} said" for at in range(count)]


def test_bits_of_a_shared_word():
    prompts, answers = numbered(40)
    ties = RareWords.of(prompts, answers)
    assert ties.tie(3, 3) == pytest.approx(math.log2(40), abs=1e-6)
    assert ties.tie(3, 4) == 0.0
    assert ties.ties(PROMPT, 3).tolist() == ties.ties(ANSWER, 3).tolist()
    assert ties.ties(PROMPT, 3)[3] == ties.tie(3, 3)


def test_a_word_counts_as_common_as_on_its_commoner_side():
    prompts, answers = numbered(40)
    answers = [f"{one} n3" if at < 5 else one for at, one in enumerate(answers)]
    assert RareWords.of(prompts, answers).tie(3, 0) == pytest.approx(math.log2(40 / 5), abs=1e-6)
    everywhere = [f"{one} n3" for one in answers]
    assert RareWords.of(prompts, everywhere).tie(3, 3) == 0.0


def test_two_answers_that_changed_places():
    prompts, answers = numbered(40)
    assert pairing(prompts, answers, 0.5).misplaced == ()
    answers[0], answers[1] = answers[1], answers[0]
    measured = pairing(prompts, answers, 0.5)
    assert measured.examined == 40
    assert measured.telling > 0.9
    first = min(measured.misplaced, key=lambda one: one.row)
    assert {one.row for one in measured.misplaced} == {0, 1}
    assert first.answer_at == 1
    # The own tie is nothing, as that to all answers but one: the middle of them.
    assert first.rank == pytest.approx(0.4875)


def test_a_match_whose_own_row_fits_is_no_exchange():
    """Row 0 holds a wrong answer, and the right one is rightly held by row 1 as well."""
    prompts, answers = numbered(40)
    prompts[1] = "ask n0 n1"
    answers[1], answers[0] = "n0 n1 said", "nothing"
    assert pairing(prompts, answers, 0.5).misplaced == ()


def test_too_little_is_telling():
    measured = pairing(*numbered(4), telling=0.5)
    assert measured.telling < 0.5
    assert measured.misplaced == ()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("one two three four five six", "so: One two three four five six!", True),
        ("one two three four five six seven", "one two three nine five six seven", False),
        ("Paris", "paris.", True),
        ("Paris", "Paris is the capital of France", False),
        ("in Paris", "Paris, in", False),
    ],
)
def test_copied(first, second, expected):
    assert copied(first, second) == expected
    assert copied(second, first) == expected
