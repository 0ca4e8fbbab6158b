"""Whether tokenizer, model and template belong together."""

from __future__ import annotations

import json
import shutil

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from tests.checks.data_evidence import BASE, DATA, model_copy, rows_of, run, write_data
from tests.conftest import check_called

tokenizer_consistency = check_called("tokenizer-consistency")


@pytest.fixture
def geography():
    return Dataset.read(DATA / "geography")


def test_a_sound_model_passes(geography):
    outcome, codes = run(
        tokenizer_consistency,
        Tokenizer.read(BASE),
        BaseModel.read(BASE),
        rows_of(geography),
        geography,
    )
    assert codes == {}
    assert outcome.status.value == "passed"
    assert run(tokenizer_consistency)[0].status.value == "skipped"


def smaller_model(tmp_path, vocabulary):
    folder = tmp_path / "smaller"
    shutil.copytree(BASE, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": vocabulary}))
    return BaseModel.read(folder)


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (768, {}),
        (767, {"tokenizer-consistency.beyond-vocabulary": "error"}),
    ],
)
def test_tokens_without_an_embedding(tmp_path, geography, vocabulary, expected):
    model = smaller_model(tmp_path, vocabulary)
    _, codes = run(tokenizer_consistency, Tokenizer.read(BASE), model, rows_of(geography))
    assert codes == expected


def test_unused_tokens_without_an_embedding_are_a_warning(tmp_path):
    model = smaller_model(tmp_path, 767)
    rows = rows_of(write_data(tmp_path, train=[{"tokens": [1, 2, 3]}] * 4))
    _, codes = run(tokenizer_consistency, Tokenizer.read(BASE), model, rows)
    assert codes == {"tokenizer-consistency.larger-than-model": "warning"}


def test_the_template_ends_with_another_token(tmp_path, geography):
    folder = model_copy(tmp_path, eos_token="<|endoftext|>")
    for name in ("generation_config.json", "config.json"):
        (folder / name).write_text('{"eos_token_id": 765}')
    rows = rows_of(geography, model=folder)
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder), rows)
    assert codes == {
        "tokenizer-consistency.terminator-is-not-an-end-token": "warning",
        "tokenizer-consistency.pad-is-end": "info",
    }


def test_disagreeing_files(tmp_path, geography):
    folder = model_copy(tmp_path, eos_token="<|im_start|>")
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder), rows_of(geography, model=folder))
    assert codes == {"tokenizer-consistency.end-tokens-disagree": "info"}


def test_no_end_token(tmp_path):
    folder = model_copy(tmp_path, eos_token=None)
    for name in ("generation_config.json", "config.json"):
        (folder / name).write_text("{}")
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder))
    assert codes == {"tokenizer-consistency.no-end-token": "warning"}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("geography", {"tokenizer-consistency.no-chat-template": "error"}),
        ("geography-text", {}),
    ],
)
def test_no_chat_template(tmp_path, data, expected):
    folder = model_copy(tmp_path)
    (folder / "chat_template.jinja").unlink()
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder), Dataset.read(DATA / data))
    assert codes == expected
