"""Rows of the fixtures in formats without a chat template."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.dataset import Dataset, Features, Split
from mlxdoctor.evidence.supervision import Role, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.validation import (
    PLAIN_FORMATS,
    WITHOUT_END,
    PlainFormat,
    rewritten,
)
from tests.conftest import FIXTURES

QUESTION = PlainFormat("Q: {prompt}\nA: {answer}", apart=True)
ASKED = {"role": "user", "content": "how?"}
ANSWERED = {"role": "assistant", "content": "so"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.read(FIXTURES / "base")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset.read(FIXTURES / "data" / "geography")


@pytest.fixture(scope="module")
def rows(dataset: Dataset, tokenizer: Tokenizer) -> SupervisedRows:
    return build(dataset, tokenizer, None, split="valid")


def written(
    rows: SupervisedRows, dataset: Dataset, tokenizer: Tokenizer, plain: PlainFormat
) -> SupervisedRows:
    return rewritten(rows, dataset.splits["valid"], tokenizer, plain)


@pytest.mark.parametrize("apart", [True, False])
def test_a_row_written_as_question_and_answer(
    rows: SupervisedRows, dataset: Dataset, tokenizer: Tokenizer, apart: bool
) -> None:
    plain = PlainFormat(QUESTION.pattern, apart)
    changed = written(rows, dataset, tokenizer, plain)
    assert len(changed.rows) == len(rows.rows)
    first = changed.rows[0]
    question, answer = (
        one["content"] for one in dataset.splits["valid"].rows[first.index]["messages"]
    )
    end = tokenizer.decode([tokenizer.eos_token_id or 0])
    assert tokenizer.decode(first.tokens.tolist()) == f"Q: {question}\nA: {answer}{end}"
    assert first.roles[-1] == Role.END
    assert (first.length, first.full_length) == (len(first.tokens), len(first.tokens))
    if apart:
        assert tokenizer.decode(first.tokens[: first.prompt_length].tolist()).endswith("A: ")


def test_an_end_token_that_the_format_writes_is_not_doubled(
    rows: SupervisedRows, dataset: Dataset, tokenizer: Tokenizer
) -> None:
    chatml = next(one for one in PLAIN_FORMATS if one.pattern and "im_start" in one.pattern)
    for row in written(rows, dataset, tokenizer, chatml).rows:
        assert int(np.sum(row.tokens == tokenizer.eos_token_id)) == 2


def test_a_row_cut_before_its_end(
    rows: SupervisedRows, dataset: Dataset, tokenizer: Tokenizer
) -> None:
    for before, after in zip(
        rows.rows, written(rows, dataset, tokenizer, WITHOUT_END).rows, strict=True
    ):
        assert Role.END not in after.roles
        assert before.tokens[after.length] == tokenizer.eos_token_id
        assert before.tokens[: after.length].tolist() == after.tokens.tolist()
        assert after.padded


@pytest.mark.parametrize(
    ("row", "row_format", "pair"),
    [
        ({"messages": [ASKED, ANSWERED]}, "chat", ("how?", "so")),
        ({"messages": [{"role": "system"}, ASKED, ANSWERED]}, "chat", ("how?", "so")),
        ({"messages": [ASKED, ANSWERED, ASKED, ANSWERED]}, "chat", None),
        ({"messages": [ASKED]}, "chat", None),
        ({"messages": "none"}, "chat", None),
        ({"messages": [ASKED, {**ANSWERED, "content": None}]}, "chat", None),
        ({"prompt": "how?", "completion": "so"}, "completions", ("how?", "so")),
        ({"text": "how? so"}, "text", None),
    ],
)
def test_question_and_answer(
    row: dict[str, Any], row_format: str, pair: tuple[str, str] | None
) -> None:
    split = Split("train", Path("train.jsonl"), (row,), (1,), row_format, {}, Features())
    assert split.turn(row) == pair
