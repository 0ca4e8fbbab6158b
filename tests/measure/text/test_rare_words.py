"""Ties between prompts and answers, and the rows that they call misplaced."""

from __future__ import annotations

import math

import pytest

from mlxdoctor.measure.text.rare_words import Dealt, RareWords, copied


def numbered(count):
    """Prompts and answers tied by one number each."""
    prompts = [f"ask n{at}" for at in range(count)]
    return prompts, [f"n{at} said" for at in range(count)]


def dealt(prompts, answers, answer_of, *, margin=3.0, standing_out=0.9, slack=1.0):
    rows = range(len(prompts))
    with_answer = [[row for row in rows if answer_of[row] == one] for one in range(len(answers))]
    ties = RareWords.of(prompts, answers)
    holders = [[row] for row in rows]
    return Dealt(ties, rows, answer_of, holders, with_answer, standing_out, margin, slack)


def test_bits_of_a_shared_word():
    prompts, answers = numbered(40)
    ties = RareWords.of(prompts, answers)
    assert ties.tie(3, 3) == pytest.approx(math.log2(40), abs=1e-6)
    assert ties.tie(3, 4) == 0.0
    assert ties.ties_of_prompt(3).tolist() == ties.ties_of_answer(3).tolist()
    assert ties.ties_of_prompt(3)[3] == ties.tie(3, 3)


def test_a_word_counts_as_common_as_on_its_commoner_side():
    prompts, answers = numbered(40)
    answers = [f"{one} n3" if at < 5 else one for at, one in enumerate(answers)]
    assert RareWords.of(prompts, answers).tie(3, 0) == pytest.approx(math.log2(40 / 5), abs=1e-6)
    everywhere = [f"{one} n3" for one in answers]
    assert RareWords.of(prompts, everywhere).tie(3, 3) == 0.0


def test_two_answers_that_changed_places():
    prompts, answers = numbered(40)
    answer_of = [1, 0, *range(2, 40)]
    rows = dealt(prompts, answers, answer_of)
    found = rows.misplaced(0)
    assert (found.row, found.answer, found.answer_at, found.prompt) == (0, 0, 1, 1)
    # The own tie is nothing, as that to all answers but one: the middle of them.
    assert found.rank == pytest.approx(0.4875)
    assert rows.misplaced(5) is None
    assert dealt(prompts, answers, range(40)).misplaced(0) is None


@pytest.mark.parametrize(("margin", "misplaced"), [(5.3, True), (5.4, False)])
def test_the_margin(margin, misplaced):
    prompts, answers = numbered(40)
    rows = dealt(prompts, answers, [1, 0, *range(2, 40)], margin=margin)
    assert (rows.misplaced(0) is not None) == misplaced


def test_a_match_whose_own_row_fits_is_no_exchange():
    """Row 0 holds a wrong answer, and the right one is rightly held by row 1 as well."""
    prompts, answers = numbered(40)
    prompts[1] = "ask n0 n1"
    answers[1], answers[0] = "n0 n1 said", "nothing"
    assert dealt(prompts, answers, range(40)).misplaced(0) is None


@pytest.mark.parametrize(("slack", "misplaced"), [(5.2, False), (5.4, True)])
def test_a_match_that_another_prompt_fits_better(slack, misplaced):
    prompts, answers = numbered(40)
    answers[0] += " m"
    prompts[2] += " n0 m"
    rows = dealt(prompts, answers, [1, 0, *range(2, 40)], slack=slack)
    assert (rows.misplaced(0) is not None) == misplaced


@pytest.mark.parametrize(("standing_out", "misplaced"), [(0.9, False), (0.7, True)])
def test_a_match_among_many(standing_out, misplaced):
    """What a prompt shares with a fifth of the answers does not tell which of them is its own."""
    prompts, answers = numbered(40)
    prompts[0], answers[0] = "ask g h", "g h said"
    for at in range(2, 9):
        prompts[at] += " g h"
        answers[at] += " g h"
    rows = dealt(prompts, answers, [1, 0, *range(2, 40)], standing_out=standing_out)
    assert (rows.misplaced(0) is not None) == misplaced


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
    assert copied(first, second, 0.3) == expected
    assert copied(second, first, 0.3) == expected
