"""Answers after their own and other prompts, measured with the fixture's base model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fixtures.lab.cases.workshop import write_rows
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.supervision import Role, SupervisedRows
from mlxdoctor.models.forward import Question, predict
from mlxdoctor.models.load import LoadedModels
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.models.prompt_gains import ANSWER_TOKENS, PromptGains
from mlxdoctor.run import Run
from mlxdoctor.safety.time_budget import TimeBudget
from tests.checks.data_evidence import conversation
from tests.conftest import BASE, RUNS


def test_an_answer_is_measured_after_its_own_and_after_another_rows_prompt() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"])
    gains, rows = run.get(PromptGains), run.get(SupervisedRows)
    some = gains.measure("train", 12)
    by_index = {row.index: row for row in rows.rows}
    model = run.need(LoadedModels).select("base")
    for own, other in some[:3]:
        whole = by_index[own.index]
        prompt, answer = own.tokens[: own.prompt_length], own.tokens[own.prompt_length :]
        assert prompt.tolist() == whole.tokens[: whole.prompt_length].tolist()
        assert len(answer) == min(ANSWER_TOKENS, int((whole.roles == Role.ANSWER).sum()))
        assert other.tokens[other.prompt_length :].tolist() == answer.tolist()
        assert other.tokens[: other.prompt_length].tolist() != prompt.tolist()
        for row in (own, other):
            (again,) = predict(model, [Question(row.tokens[:-1], answer[:, None])])
            mean = row.mean("base", Role.ANSWER)
            assert mean == pytest.approx(float(again.losses.mean()), abs=1e-3)


def test_what_was_measured_before_is_not_measured_again() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"])
    gains, known = run.need(PromptGains), run.need(TokenLosses).split("valid")
    whole = {row.index: row for row in known}
    first = gains.measure("valid", len(whole))
    assert {own.index for own, _ in first} == whole.keys()
    assert all(own.base is whole[own.index].base for own, _ in first)
    some = gains.measure("valid", 12)
    more = gains.measure("valid", 20)
    assert len({own.index for own, _ in more}) == 20
    models = run.need(LoadedModels)
    asked = {which: len(answers) for which, answers in models.answers.items()}
    for again, kept in zip(gains.measure("valid", 20), some, strict=False):
        np.testing.assert_array_equal(again[1].base.next, kept[1].base.next)
    assert asked == {which: len(answers) for which, answers in models.answers.items()}


def test_what_no_time_was_left_for_is_said() -> None:
    seconds = [0.0]
    run = Run.discover([RUNS / "healthy-ordinary"])
    gains = replace(run, budget=TimeBudget(60.0, lambda: seconds[0])).need(PromptGains)
    seconds[0] = 60.0
    assert gains.measure("valid", 12) == ()
    assert gains.left_out.startswith("0 of 12 valid rows were given another row's prompt")


def test_the_base_alone_before_training(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Question {at}?", "completion": f"The answer to {at} is {at * at}."}
        for at in range(12)
    ]
    gains = Run.discover([write_rows(tmp_path, train=rows)], base=BASE).get(PromptGains)
    assert gains.rows == {"train": 12}
    measured = gains.measure("train", 5)
    assert len(measured) == 5
    assert all(own.tuned is None for own, _ in measured)


def test_earlier_answers_of_a_dialogue_belong_to_the_prompt(tmp_path: Path) -> None:
    turns = [("user", "Who"), ("assistant", "The one with")]
    turns += [("user", "And then"), ("assistant", "It was")]
    rows = [conversation(*((role, f"{text} {at}.") for role, text in turns)) for at in range(12)]
    run = Run.discover([write_rows(tmp_path, train=rows)], base=BASE)
    for own, other in run.need(PromptGains).measure("train", 5):
        for row in (own, other):
            assert not np.any(row.roles[: row.prompt_length] == Role.ANSWER)
            assert np.all(row.roles[row.prompt_length :] == Role.ANSWER)


def test_rows_without_a_prompt_have_none(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "Only a text."}\n' * 12)
    run = Run.discover([tmp_path], base=BASE)
    with pytest.raises(Missing, match=r"^no row has a prompt and an answer of its own$"):
        run.need(PromptGains)
