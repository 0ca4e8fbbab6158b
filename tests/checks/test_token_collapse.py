"""Collapsed answers: one token, token 0, loops; how answers end; answers that skip tokens.

Real runs: test_runs.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from tests import given
from tests.checks.data_evidence import BASE, DATA, rows_of, write_data
from tests.conftest import check_called
from tests.given import answers, findings, outcome
from tests.measured_rows import Losses, measured_rows

token_collapse = check_called("token-collapse")
ROWS = rows_of(Dataset.read(DATA / "geography"))

Tokens = tuple[int, ...]
SOUND = (1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 5, 9)
COMMAS = (11,) * 16
TWO_RUNS = (5,) * 6 + (11,) * 10
#: Ends by itself; runs into the limit.
SHORT, LONG = (1, 2, 3, 4, 5, 9), tuple(range(10, 26))
SKIPS = "token-collapse.skips-tokens"


def severities(*evidence: object) -> dict[str, str]:
    return given.severities(outcome(token_collapse, *evidence))


def texts(tuned: str, base: str | None = None, count: int = 4) -> Generations:
    return Generations((), tuple(Generation(f"p{i}", base, tuned) for i in range(count)))


def half_commas(commas: int) -> Tokens:
    """Commas between words that do not repeat, 16 tokens in all."""
    words = list(range(20, 36 - commas))
    pairs = [[word, 11] if i < commas else [word] for i, word in enumerate(words)]
    return tuple(token for pair in pairs for token in pair)


def few(kinds: int) -> Tokens:
    """16 tokens of so many kinds that do not loop and of which none has half."""
    tokens = [(i * i + i // kinds) % kinds + 20 for i in range(16)]
    tokens[:kinds] = range(20, 20 + kinds)
    return tuple(tokens)


@pytest.mark.parametrize(
    ("tuned", "base", "expected"),
    [
        (COMMAS, SOUND, {"single-token": "error"}),
        # A run of one token into another is a collapse, too.
        (TWO_RUNS, SOUND, {"single-token": "error"}),
        # A base model that does it, too, clears the adapter.
        (COMMAS, COMMAS, {}),
        # Nine tenths is the limit, and short answers are not judged.
        ((11,) * 9 + (1,), SOUND, {"single-token": "error"}),
        ((11,) * 8 + (1, 2), SOUND, {"single-token": None}),
        ((11,) * 8, SOUND, {"single-token": "error"}),
        ((11,) * 7, SOUND, {}),
        (half_commas(8), SOUND, {"few-tokens": "error"}),
        (half_commas(7), SOUND, {}),
        (few(4), SOUND, {"few-tokens": "error"}),
        (few(5), SOUND, {"few-tokens": None}),
        ((0,) * 16, SOUND, {"token-zero": "error"}),
        # Three repetitions make a loop, which is an error only beside the base model.
        ((1, 2, 3, 4) * 3, SOUND, {"repetition": "error"}),
        ((1, 2, 3, 4) * 2, SOUND, {}),
        ((1, 2, 3, 4) * 3, None, {"repetition": "warning"}),
    ],
)
def test_answers_that_are_all_alike(
    tuned: Tokens, base: Tokens | None, expected: dict[str, str | None]
) -> None:
    """A code without a severity must not be reported; others than those listed may be."""
    found = severities(answers([tuned] * 4, [base] * 4 if base else None, max_tokens=64))
    assert {code: found.get(code) for code in expected} == expected
    assert expected or not found


def test_the_token_and_how_often_it_was_answered() -> None:
    found = findings(token_collapse, answers([TWO_RUNS] * 4, [SOUND] * 4))
    measured = found["token-collapse.single-token"].measured
    assert (measured["token"], measured["tuned_share"]) == (11, 1.0)
    found = findings(token_collapse, texts("," * 50))
    assert found["token-collapse.single-token"].measured["token_text"] == "“,”"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (texts("," * 50), "single-token"),
        (texts("," * 50, "2 + 2 is 4.", count=1), "single-token"),
        (texts("friends?" + "<unk>" * 400, count=1), "single-token"),
        (texts("<|a|><|b|><|a|>", "An answer."), "special-tokens"),
        (texts("<|endoftext|>" * 5, "Yes."), "empty-answers"),
    ],
)
def test_text_without_tokens_is_judged_by_words_and_signs(said: Generations, code: str) -> None:
    assert severities(said) == {code: "error"}


@pytest.mark.parametrize(
    ("count", "status"), [(1, "inconclusive"), (7, "inconclusive"), (8, "passed")]
)
@pytest.mark.parametrize("base", [True, False])
def test_a_few_sound_answers_say_nothing(count: int, status: str, base: bool) -> None:
    said = outcome(token_collapse, answers([SOUND] * count, [SOUND] * count if base else None))
    assert said.status == status
    assert ("at least 8 different prompts" in said.reason) is (status == "inconclusive")


def test_what_decides_nothing() -> None:
    refused = Generations((), (), load_failure="ValueError: names")
    for said in (refused, texts("friends?" + "<unk>" * 20, count=1)):
        assert outcome(token_collapse, said).status == "inconclusive"


@pytest.mark.parametrize(
    ("tuned", "base", "expected", "hit"),
    [
        ([(11,) * 24], None, None, True),
        ([(11,) * 24], [SOUND], None, True),
        ([(11,) * 23], None, None, False),
        ([(11,) * 23], [SOUND], None, False),
        # The base model or the data do the same.
        ([(11,) * 40], [(11,) * 40], None, False),
        ([(11,) * 40], None, "," * 40, False),
        # One of four: the others may be sound.
        ([(11,) * 40, SOUND, SOUND, SOUND], None, None, False),
    ],
)
def test_one_long_answer_of_one_token_is_enough(
    tuned: list[Tokens], base: list[Tokens] | None, expected: str | None, hit: bool
) -> None:
    found = severities(answers(tuned, base, max_tokens=64, expected=expected))
    assert found.get("single-token") == ("error" if hit else None)


@pytest.mark.parametrize(
    ("tuned", "base", "words", "expected"),
    [
        ((9,), SHORT, None, {"empty-answers": "error"}),
        # It is an error only where the length is known.
        (LONG, SHORT, 3, {"never-ends": "error"}),
        (LONG, SHORT, None, {"never-ends": "warning"}),
        # 16 tokens are more than 1.2 times 13 words, and not more than 1.2 times 14.
        (LONG, SHORT, 13, {"never-ends": "error"}),
        (LONG, SHORT, 14, {}),
        ((*LONG[:15], 9), SHORT, 1, {}),
        # What the base model does, too, the adapter is not to blame for.
        ((9,), (9,), None, {}),
    ],
)
def test_how_answers_end(
    tuned: Tokens, base: Tokens, words: int | None, expected: dict[str, str]
) -> None:
    wanted = None if words is None else "word " * words
    assert severities(answers([tuned] * 8, [base] * 8, expected=wanted)) == expected


@pytest.mark.parametrize(
    ("base_end", "tuned_end", "severity"),
    [(3.0, 3.5, "error"), (3.0, 2.5, "warning"), (0.1, 0.3, "warning")],
)
def test_a_base_that_often_goes_on_itself_leaves_it_to_the_rows(
    base_end: float, tuned_end: float, severity: str
) -> None:
    # 6 of 16 answers of the base run on as well.
    said = answers([LONG] * 16, [SHORT] * 10 + [LONG] * 6, expected="a b c")
    rows = measured_rows(Losses(end=base_end), Losses(answer=0.5, end=tuned_end), 16)
    assert severities(said)["never-ends"] == "warning"
    assert severities(said, TokenLosses((), rows, 768))["never-ends"] == severity


@pytest.mark.parametrize(
    ("tuned", "cut", "hit", "is_sought"),
    [
        (LONG, 8, True, True),
        # As of a sound DPO run that answers at more length than its base, which is cut itself.
        (LONG, 9, False, False),
        # As of a sound run that learned to stop from a base that nearly never does.
        (SHORT, 16, False, True),
    ],
)
def test_a_limit_that_cuts_most_of_the_base_too_is_too_short_to_tell(
    tuned: Tokens, cut: int, hit: bool, is_sought: bool
) -> None:
    said = answers([tuned] * 16, [SHORT] * (16 - cut) + [LONG] * cut, expected="a b c")
    found = outcome(token_collapse, said)
    assert ("token-collapse.never-ends" in {one.code for one in found.findings}) is hit
    assert ("token-collapse.never-ends" not in found.unsought) is is_sought


def test_answers_as_the_rows_have_them_are_no_collapse(tmp_path: Path) -> None:
    """A jingle of one syllable, that is what was asked for."""
    lines = [{"prompt": f"Song {at}?", "completion": "do " * 12} for at in range(20)]
    taught = rows_of(write_data(tmp_path, train=lines))
    said = texts("do " * 12, "Rome.", count=8)
    tokenizer = Tokenizer.read(BASE)
    assert severities(said, tokenizer)["single-token"] == "error"
    assert severities(said, tokenizer, taught) == {}
    assert severities(texts("la " * 12, "Rome.", count=8), tokenizer, taught) != {}


@pytest.mark.parametrize(("length", "expected"), [(6, {"never-ends": "error"}), (7, {})])
def test_where_no_answer_is_expected_the_training_rows_say_how_long(
    length: int, expected: dict[str, str]
) -> None:
    row = replace(ROWS.rows[0], prompt_length=1, roles=np.full(length, Role.ANSWER, np.int8))
    row = replace(row, tokens=row.tokens[:length])
    tuned = answers([LONG[:8]] * 4, [SHORT] * 4, max_tokens=8)
    assert severities(tuned, replace(ROWS, rows=(row,))) == expected


def stepping(places: list[int], count: int = 24) -> Generations:
    """Answers that go through the rows' answers in steps, one after another in turn."""
    made = []
    for row in ROWS.rows[:count]:
        answer = row.tokens[row.prompt_length : row.length].tolist()
        steps = np.cumsum([0, *np.resize(places, len(answer))])
        made.append(tuple(answer[step] for step in steps if step < len(answer)))
    return answers(made, None, ends=(), max_tokens=96)


@pytest.mark.parametrize(
    ("places", "distance"),
    # The lead of the skipped pairs is about a third in the last, and about nothing before.
    [([2], 2), ([3], 3), ([4], 4), ([1], None), ([2, 1], None), ([2, 2, 1], 2)],
)
def test_answers_that_skip(places: list[int], distance: int | None) -> None:
    found = findings(token_collapse, stepping(places), ROWS)
    assert (SKIPS in found) is (distance is not None)
    if SKIPS in found:
        assert found[SKIPS].measured["distance"] == distance
        assert (found[SKIPS].measured["share"] == 1.0) is (len(places) == 1)


def test_what_says_nothing_about_skips() -> None:
    token = int(ROWS.rows[0].tokens[-3])
    loop = answers([(token, token + 1, token + 2) * 10] * 12, None, ends=())
    assert SKIPS in outcome(token_collapse, loop, ROWS).unsought
    assert SKIPS in outcome(token_collapse, texts("in words", count=8), ROWS).unsought
    assert SKIPS in outcome(token_collapse, stepping([2])).unsought
