"""Answers after their own and other prompts, measured with the fixture's base model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.models.forward import Question, predict
from mlxdoctor.models.load import LoadedModels
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.models.prompt_gains import ANSWER_TOKENS, PromptGains
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, RUNS

BASE = FIXTURES / "base"


def test_what_was_measured_before_is_not_measured_again_and_is_the_same() -> None:
    run = Run.discover([RUNS / "healthy-ordinary"])
    gains, losses = run.get(PromptGains), run.get(TokenLosses)
    assert gains is not None
    assert losses is not None
    known = {row.index: row for row in losses.split("valid")}
    some = gains.measure("valid", 20)
    assert {row.index for row in some[: len(known)]} == known.keys()
    # Measured from scratch, an answer after its own prompt has the same loss.
    model = run.need(LoadedModels).select("base")
    for row in some[:3]:
        whole = known[row.index]
        last = whole.prompt_length + min(ANSWER_TOKENS, int((whole.roles == 1).sum()))
        tokens = whole.tokens[:last].tolist()
        own = Question.after(tokens[: whole.prompt_length], tokens[whole.prompt_length :])
        (again,) = predict(model, [own])
        assert row.base[0] == pytest.approx(float(again.losses.mean()), abs=1e-3)
    assert gains.measure("valid", 12) == some[:12]


def test_the_base_alone_before_training(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Question {at}?", "completion": f"The answer to {at} is {at * at}."}
        for at in range(12)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    gains = Run.discover([tmp_path], base=BASE).get(PromptGains)
    assert gains is not None
    assert gains.rows == {"train": 12}
    measured = gains.measure("train", 5)
    assert len(measured) == 5
    assert all(row.tuned is None and row.base[0] != row.base[1] for row in measured)


def test_rows_without_a_prompt_have_none(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "Only a text."}\n' * 12)
    run = Run.discover([tmp_path], base=BASE)
    assert run.get(PromptGains) is None
    assert run.why_missing(PromptGains) == "no row has a prompt and an answer of its own"
