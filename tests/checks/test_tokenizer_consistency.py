"""Whether tokenizer, model and template belong together."""

from __future__ import annotations

import json
import shutil

import pytest

from fixtures.lab.real.rows import TEXT_FORMS
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


def changed_model(tmp_path, **stated):
    folder = tmp_path / "changed"
    shutil.copytree(BASE, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **stated}))
    return BaseModel.read(folder)


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (768, {}),
        (767, {"tokenizer-consistency.beyond-vocabulary": "error"}),
    ],
)
def test_tokens_without_an_embedding(tmp_path, geography, vocabulary, expected):
    model = changed_model(tmp_path, vocab_size=vocabulary)
    _, codes = run(tokenizer_consistency, Tokenizer.read(BASE), model, rows_of(geography))
    assert codes == expected


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


def test_no_file_names_an_end_token(tmp_path, geography):
    folder = model_copy(tmp_path, eos_token=None)
    for name in ("generation_config.json", "config.json"):
        (folder / name).write_text("{}")
    rows = rows_of(geography, model=folder)
    outcome, codes = run(tokenizer_consistency, Tokenizer.read(folder), rows)
    assert codes == {"tokenizer-consistency.terminator-is-not-an-end-token": "warning"}
    assert "generation stops at no token" in outcome.findings[0].message


def test_disagreeing_files(tmp_path, geography):
    folder = model_copy(tmp_path, eos_token="<|im_start|>")
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder), rows_of(geography, model=folder))
    assert codes == {"tokenizer-consistency.end-tokens-disagree": "info"}


LLAMA_3 = (
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] }}<|eot_id|>{% endfor %}"
)
CHATML_AND = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nADDED{% endif %}"
)
ROLES = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}### {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "unknown"),
    [
        (LLAMA_3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
        (CHATML_AND.replace("ADDED", "<|channel|>"), ("<|channel|>",)),
        (CHATML_AND.replace("ADDED", "<start_of_turn>"), ("<start_of_turn>",)),
        (CHATML_AND.replace("ADDED", "<\uff5cAssistant\uff5c>"), ("<\uff5cAssistant\uff5c>",)),
        (CHATML_AND.replace("ADDED", "</s>"), ("</s>",)),
        # Plain text on purpose, or not written in a plain conversation.
        (CHATML_AND.replace("ADDED", "<think>\n"), ()),
        (CHATML_AND.replace("ADDED", "{% if tools %}<|tools|>{% endif %}"), ()),
        (CHATML_AND.replace("ADDED", "<|not a marker|>"), ()),
        (CHATML_AND.replace("ADDED", ""), ()),
        (ROLES, ()),
        (INST, ()),
    ],
)
def test_markers_that_are_no_tokens(tmp_path, template, unknown):
    outcome, codes = run(tokenizer_consistency, Tokenizer.read(model_copy(tmp_path, template)))
    expected = {"tokenizer-consistency.template-markers-unknown": "warning"} if unknown else {}
    assert codes == expected
    if unknown:
        (finding,) = outcome.findings
        assert finding.measured["markers"] == unknown
        assert finding.measured["pieces"] > 1


def test_a_marker_that_was_added_is_a_token(tmp_path):
    template = CHATML_AND.replace("ADDED", "<|channel|>")
    folder = model_copy(tmp_path, template, extra_special_tokens=["<|channel|>"])
    assert run(tokenizer_consistency, Tokenizer.read(folder))[1] == {}


def test_a_vocabulary_that_splits_special_tokens_knows_no_marker(tmp_path):
    folder = model_copy(tmp_path, split_special_tokens=True)
    outcome, codes = run(tokenizer_consistency, Tokenizer.read(folder))
    assert codes == {"tokenizer-consistency.template-markers-unknown": "warning"}
    assert outcome.findings[0].measured["markers"] == ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(("data", "hit"), [("geography", True), ("geography-text", False)])
def test_a_template_that_the_data_do_not_need_is_left_alone(tmp_path, data, hit):
    folder = model_copy(tmp_path, LLAMA_3)
    _, codes = run(tokenizer_consistency, Tokenizer.read(folder), Dataset.read(DATA / data))
    assert ("tokenizer-consistency.template-markers-unknown" in codes) is hit


def test_a_template_that_refuses_the_conversation_is_left_alone(tmp_path):
    folder = model_copy(tmp_path, "{{ raise_exception('no') }}<|eot_id|>")
    assert run(tokenizer_consistency, Tokenizer.read(folder))[1] == {}


# Rows of text.

CODE = "tokenizer-consistency.written-by-hand"
TOKENIZER = Tokenizer.read(BASE)
PROSE = [{"text": f"Rule {at}: a lake is named once. Note: this holds."} for at in range(40)]


def texts(form, count=40):
    return [
        {"text": form.format(prompt=f"Which lake is number {at}?", answer=f"Lake {at}.")}
        for at in range(count)
    ]


def rendered(question, answer):
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"text": TOKENIZER.render(messages)}


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_rows_written_by_hand(tmp_path, form):
    rows = texts(TEXT_FORMS[form])
    outcome, codes = run(tokenizer_consistency, write_data(tmp_path, train=rows), TOKENIZER)
    assert codes == {CODE: "warning"}
    assert outcome.findings[0].measured["exchanges"] == 40
    assert outcome.findings[0].measured["after"] in outcome.findings[0].message


@pytest.mark.parametrize(
    ("rows", "hit"),
    [
        (texts(TEXT_FORMS["roles"]) + PROSE[:4], True),
        (texts(TEXT_FORMS["roles"]) + PROSE[:10], False),
        (PROSE, False),
        (texts(TEXT_FORMS["plain"], 7), False),
        ([rendered(f"Which lake is {at}?", f"Lake {at}.") for at in range(40)], False),
        (
            [
                *(rendered(f"Which lake is {at}?", f"Lake {at}.") for at in range(36)),
                *texts(TEXT_FORMS["alpaca"], 4),
            ],
            False,
        ),
    ],
)
def test_a_row_in_ten_may_be_another(tmp_path, rows, hit):
    codes = run(tokenizer_consistency, write_data(tmp_path, train=rows), TOKENIZER)[1]
    assert codes == ({CODE: "warning"} if hit else {})


def test_without_a_template_and_with_one_that_refuses(tmp_path):
    rows = write_data(tmp_path, train=texts(TEXT_FORMS["alpaca"]))
    bare = model_copy(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    assert run(tokenizer_consistency, rows, Tokenizer.read(bare))[1] == {}
    refusing = Tokenizer.read(model_copy(tmp_path / "no", "{{ raise_exception('no') }}"))
    assert CODE in run(tokenizer_consistency, rows, refusing)[0].unsought
