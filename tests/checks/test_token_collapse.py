"""Collapsed answers: one token, token 0, loops; how answers end; answers that skip tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import Role, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Outcome
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.run import Run
from tests.checks.data_evidence import DATA, rows_of
from tests.conftest import FIXTURES, RUNS, check_called, expected, run_names
from tests.given import answers, findings, outcome
from tests.measured_rows import Losses, measured_rows

token_collapse = check_called("token-collapse")


SOUND = (1, 2, 3, 4, 5, 6, 7, 8, 1, 3, 5, 9)
COMMAS = (11,) * 16


def half_commas(commas: int) -> tuple[int, ...]:
    """Commas between words that do not repeat, 16 tokens in all."""
    words = list(range(20, 36 - commas))
    pairs = [[word, 11] if i < commas else [word] for i, word in enumerate(words)]
    return tuple(token for pair in pairs for token in pair)


def few(kinds: int) -> tuple[int, ...]:
    """16 tokens of so many kinds that do not loop and of which none has half."""
    tokens = [(i * i + i // kinds) % kinds + 20 for i in range(16)]
    tokens[:kinds] = range(20, 20 + kinds)
    return tuple(tokens)


@pytest.mark.parametrize(
    ("tuned", "base", "expected"),
    [
        (COMMAS, SOUND, {"single-token": "error"}),
        # A run of one token into another is a collapse, too.
        ((5,) * 6 + (11,) * 10, SOUND, {"single-token": "error"}),
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
    tuned: tuple[int, ...], base: tuple[int, ...] | None, expected: dict[str, str | None]
) -> None:
    """A code without a severity must not be reported; others than those listed may be."""
    said = answers([tuned] * 4, [base] * 4 if base else None, max_tokens=64)
    found = findings(token_collapse, said)
    severities = {code.split(".")[1]: str(one.severity) for code, one in found.items()}
    for code, severity in expected.items():
        assert severities.get(code) == severity
    if not expected:
        assert not severities


def test_the_token_and_how_often_it_was_answered() -> None:
    two = (5,) * 6 + (11,) * 10
    finding = findings(token_collapse, answers([two] * 4, [SOUND] * 4))
    measured = finding["token-collapse.single-token"].measured
    assert (measured["token"], measured["tuned_share"]) == (11, 1.0)


def test_text_without_tokens_is_judged_by_words_and_signs() -> None:
    items = tuple(Generation(f"p{i}", None, "," * 50) for i in range(3))
    found = findings(token_collapse, Generations((), items))
    finding = found["token-collapse.single-token"]
    assert finding.severity == "error"
    assert finding.measured["token_text"] == "“,”"


def test_special_tokens_only() -> None:
    items = tuple(Generation(f"p{i}", "An answer.", "<|a|><|b|><|a|>") for i in range(4))
    found = findings(token_collapse, Generations((), items))
    assert found["token-collapse.special-tokens"].severity == "error"


@pytest.mark.parametrize(
    ("count", "status"), [(1, "inconclusive"), (7, "inconclusive"), (8, "passed")]
)
@pytest.mark.parametrize("base", [True, False])
def test_a_few_sound_answers_say_nothing(count: int, status: str, base: bool) -> None:
    said = outcome(token_collapse, answers([SOUND] * count, [SOUND] * count if base else None))
    assert said.status == status
    assert ("at least 8 different prompts" in said.reason) is (status == "inconclusive")


def test_one_collapsed_answer_is_no_clean_bill() -> None:
    one = Generations((), (Generation("p", None, "friends?" + "<unk>" * 400),))
    assert "token-collapse.single-token" in findings(token_collapse, one)
    short = Generations((), (Generation("p", None, "friends?" + "<unk>" * 20),))
    assert outcome(token_collapse, short).status == "inconclusive"
    assert outcome(token_collapse, answers([COMMAS] * 3, [SOUND] * 3)).status == "found"


def test_no_answers_is_inconclusive_and_no_evidence_is_skipped() -> None:
    refused = Generations((), (), load_failure="ValueError: names")
    assert outcome(token_collapse, refused).status == "inconclusive"
    assert outcome(token_collapse).status == "skipped"
    assert not any(
        one.kind is SupervisedRows and not one.optional for one in token_collapse.requirements
    )


@pytest.mark.parametrize("name", [n for n in run_names() if expected(n)["verdict"] == "healthy"])
def test_healthy_runs_pass(name: str) -> None:
    recorded = Generations.read(RUNS / name / "generations.jsonl")
    assert outcome(token_collapse, recorded).status == "passed"


def test_the_fixture_that_prints_commas() -> None:
    recorded = Generations.read(RUNS / "collapse-frequent-token" / "generations.jsonl")
    found = findings(token_collapse, recorded)
    collapsed = found.keys() & {
        "token-collapse.single-token",
        "token-collapse.few-tokens",
    }
    assert [(found[code].severity, found[code].measured["token"]) for code in collapsed] == [
        ("error", 11)
    ]


@pytest.mark.parametrize(("length", "hit"), [(24, True), (23, False)])
@pytest.mark.parametrize("base", [None, [SOUND]])
def test_one_answer_of_one_token_is_enough_where_it_is_long(
    length: int, hit: bool, base: list[tuple[int, ...]] | None
) -> None:
    found = findings(token_collapse, answers([(11,) * length], base, max_tokens=64))
    assert ("token-collapse.single-token" in found) is hit
    if hit:
        assert found["token-collapse.single-token"].severity == "error"


def test_one_answer_is_not_enough_where_the_base_or_the_data_do_the_same() -> None:
    commas = (11,) * 40
    assert not findings(token_collapse, answers([commas], [commas], max_tokens=64))
    row = answers([commas], None, max_tokens=64, expected="," * 40)
    assert "token-collapse.single-token" not in findings(token_collapse, row)
    # One of four: the others may be sound.
    some = answers([commas, SOUND, SOUND, SOUND], None, max_tokens=64)
    assert "token-collapse.single-token" not in findings(token_collapse, some)


def test_commas_in_a_text_without_tokens() -> None:
    row = Generation("What is 2 + 2?", "2 + 2 is 4.", "," * 50)
    found = findings(token_collapse, Generations((), (row,)))
    assert found["token-collapse.single-token"].severity == "error"
    assert found["token-collapse.single-token"].measured["length"] == 50


# How answers end.

SHORT = (1, 2, 3, 4, 5, 9)
LONG = tuple(range(10, 26))


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
    tuned: tuple[int, ...], base: tuple[int, ...], words: int | None, expected: dict[str, str]
) -> None:
    wanted = None if words is None else "word " * words
    found = findings(token_collapse, answers([tuned] * 8, [base] * 8, expected=wanted))
    severities = {code.removeprefix("token-collapse."): one.severity for code, one in found.items()}
    assert severities == expected


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
    losses = TokenLosses((), rows, 768)
    assert findings(token_collapse, said)["token-collapse.never-ends"].severity == "warning"
    found = findings(token_collapse, said, losses)
    assert found["token-collapse.never-ends"].severity == severity


@pytest.mark.parametrize(("cut", "hit"), [(8, True), (9, False)])
def test_a_limit_that_cuts_most_of_the_base_too_is_too_short_to_tell(cut: int, hit: bool) -> None:
    """As of a sound DPO run that answers at more length than its base, which is cut itself."""
    said = answers([LONG] * 16, [SHORT] * (16 - cut) + [LONG] * cut, expected="a b c")
    found = outcome(token_collapse, said)
    assert ("token-collapse.never-ends" in {one.code for one in found.findings}) is hit
    assert ("token-collapse.never-ends" in found.unsought) is not hit


def test_answers_that_end_need_no_base_beside_them() -> None:
    """As of a sound run that learned to stop from a base that nearly never does."""
    found = outcome(token_collapse, answers([SHORT] * 24, [LONG] * 24, expected="a b c"))
    assert "token-collapse.never-ends" not in found.unsought
    assert found.looked_for("token-collapse.never-ends")


def test_recorded_text_names_its_token_collapses() -> None:
    items = tuple(Generation(f"p{i}", "Yes.", "<|endoftext|>" * 5) for i in range(3))
    found = findings(token_collapse, Generations((), items))
    assert set(found) == {"token-collapse.empty-answers"}


@pytest.mark.parametrize(("length", "hit"), [(6, True), (7, False)])
def test_where_no_answer_is_expected_the_training_rows_say_how_long(length: int, hit: bool) -> None:
    config = TrainingConfig.read(RUNS / "healthy-ordinary" / "adapter_config.json")
    data = Dataset.read(FIXTURES / "data" / "geography")
    rows = build(data, Tokenizer.read(FIXTURES / "base"), config)
    row = replace(rows.rows[0], prompt_length=1, roles=np.full(length, Role.ANSWER, np.int8))
    rows = replace(rows, rows=(row,))
    tuned = answers([LONG[:8]] * 4, [SHORT] * 4, max_tokens=8)
    found = findings(token_collapse, tuned, rows)
    assert ("token-collapse.never-ends" in found) is hit
    assert not hit or found["token-collapse.never-ends"].severity == "error"


# Tokens that are skipped.

SKIPS = "token-collapse.skips-tokens"


def outcome_of(name: str) -> Outcome:
    (found,) = run_checks([token_collapse], Run.discover([RUNS / name], allow_model=False))
    return found


@pytest.fixture(scope="module")
def rows() -> SupervisedRows:
    return rows_of(Dataset.read(DATA / "geography"))


def stepping(rows: SupervisedRows, places: list[int], count: int = 24) -> Generations:
    """Answers that go through the rows' answers in steps, one after another in turn."""
    made = []
    for row in rows.rows[:count]:
        answer = row.tokens[row.prompt_length : row.length].tolist()
        kept, at, turn = [], 0, 0
        while at < len(answer):
            kept.append(answer[at])
            at += places[turn % len(places)]
            turn += 1
        made.append(tuple(kept))
    return answers(made, None, ends=(), max_tokens=96)


def test_a_run_with_labels_shifted_by_two() -> None:
    found = {one.code: one for one in outcome_of("labels-double-shift").findings}
    assert found[SKIPS].severity == "error"
    assert found[SKIPS].measured["distance"] == 2
    assert found[SKIPS].measured["share"] > 0.5
    assert found[SKIPS].measured["adjacent_share"] < 0.2


@pytest.mark.parametrize("name", [one for one in run_names() if one != "labels-double-shift"])
def test_no_other_run_skips_tokens(name: str) -> None:
    assert SKIPS not in {one.code for one in outcome_of(name).findings}


@pytest.mark.slow
def test_most_runs_are_judged() -> None:
    assert sum(SKIPS not in outcome_of(name).unsought for name in run_names()) >= 10


@pytest.mark.parametrize("distance", [2, 3, 4])
def test_answers_that_skip(rows: SupervisedRows, distance: int) -> None:
    finding = findings(token_collapse, stepping(rows, [distance]), rows)[SKIPS]
    assert finding.measured["distance"] == distance
    assert finding.measured["share"] == 1.0


@pytest.mark.parametrize(("places", "hit"), [([1], False), ([2, 1], False), ([2, 2, 1], True)])
def test_answers_that_skip_now_and_then(rows: SupervisedRows, places: list[int], hit: bool) -> None:
    # The lead of the skipped pairs is about a third, and about nothing.
    assert (SKIPS in findings(token_collapse, stepping(rows, places), rows)) is hit


def test_what_says_nothing_about_skips(rows: SupervisedRows) -> None:
    token = int(rows.rows[0].tokens[-3])
    loop = answers([(token, token + 1, token + 2) * 10] * 12, None, ends=())
    words = Generations((), tuple(Generation(f"p{i}", None, "in words") for i in range(8)))
    assert SKIPS in outcome(token_collapse, loop, rows).unsought
    assert SKIPS in outcome(token_collapse, words, rows).unsought
    assert SKIPS in outcome(token_collapse, stepping(rows, [2])).unsought
