"""The order of tokens in the answers: recorded runs, and answers made from real rows."""

from __future__ import annotations

import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.models.generations import Generations
from mlxdoctor.run import Run
from tests.checks.data_evidence import DATA, rows_of
from tests.conftest import RUNS, check_called, run_names
from tests.given import answers, findings, outcome

answer_order = check_called("answer-order")
CODE = "answer-order.skips-tokens"


def outcome_of(name: str) -> Outcome:
    (found,) = run_checks([answer_order], Run.discover([RUNS / name], allow_model=False))
    return found


@pytest.fixture(scope="module")
def rows() -> SupervisedRows:
    return rows_of(Dataset.read(DATA / "geography"))


def said(rows: SupervisedRows, places: list[int], count: int = 8) -> Generations:
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
    (finding,) = outcome_of("labels-double-shift").findings
    assert (finding.code, finding.severity) == (CODE, "error")
    assert finding.measured["distance"] == 2
    assert finding.measured["share"] > 0.5
    assert finding.measured["adjacent_share"] < 0.2


@pytest.mark.parametrize("name", [one for one in run_names() if one != "labels-double-shift"])
def test_no_other_run_skips_tokens(name: str) -> None:
    assert outcome_of(name).findings == ()


@pytest.mark.slow
def test_most_runs_are_judged() -> None:
    judged = [name for name in run_names() if outcome_of(name).status is Status.PASSED]
    assert len(judged) >= 10


@pytest.mark.parametrize("distance", [2, 3, 4])
def test_answers_that_skip(rows: SupervisedRows, distance: int) -> None:
    finding = findings(answer_order, said(rows, [distance], count=24), rows)[CODE]
    assert finding.measured["distance"] == distance
    assert finding.measured["share"] == 1.0


def test_answers_in_order_pass(rows: SupervisedRows) -> None:
    assert outcome(answer_order, said(rows, [1]), rows).status == "passed"


@pytest.mark.parametrize(("places", "hit"), [([2, 2, 1], True), ([2, 1], False)])
def test_answers_that_skip_now_and_then(rows: SupervisedRows, places: list[int], hit: bool) -> None:
    # The lead of the skipped pairs is about a third, and about nothing.
    assert (CODE in findings(answer_order, said(rows, places, count=24), rows)) is hit


def test_a_loop_has_too_few_pairs(rows: SupervisedRows) -> None:
    token = int(rows.rows[0].tokens[-3])
    loop = answers([(token, token + 1, token + 2) * 10] * 12, None, ends=())
    assert outcome(answer_order, loop, rows).status == "inconclusive"


def test_words_are_not_tokens(rows: SupervisedRows) -> None:
    recorded = Generations.read(RUNS / "labels-double-shift" / "generations.jsonl")
    without = tuple(
        type(one)(prompt=one.prompt, base=one.base, tuned=one.tuned) for one in recorded.items
    )
    assert outcome(answer_order, Generations((), without), rows).status == "skipped"


def test_rows_and_answers_are_needed(rows: SupervisedRows) -> None:
    assert outcome(answer_order, rows).status == "skipped"
    assert outcome(answer_order, answers([(1, 2)], None)).status == "skipped"
