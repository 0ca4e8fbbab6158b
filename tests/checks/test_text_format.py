"""Text rows written by hand, for a model that is asked with a chat template."""

from __future__ import annotations

import pytest

from fixtures.lab.real.rows import TEXT_FORMS
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from tests.checks.data_evidence import BASE, DATA, chat, model_copy, run, write_data
from tests.conftest import check_called

text_format = check_called("text-format")
CODE = "text-format.written-by-hand"
TOKENIZER = Tokenizer.read(BASE)


def texts(form, count=40):
    return [
        {"text": form.format(prompt=f"Which lake is number {at}?", answer=f"Lake {at}.")}
        for at in range(count)
    ]


@pytest.mark.parametrize("level", TEXT_FORMS)
def test_rows_written_by_hand(tmp_path, level):
    rows = texts(TEXT_FORMS[level])
    outcome, codes = run(text_format, write_data(tmp_path, train=rows), TOKENIZER)
    assert codes == {CODE: "warning"}
    one = outcome.findings[0]
    assert one.measured["exchanges"] == 40
    assert all(mark in rows[0]["text"] for mark in one.measured["marks"])


def rendered(question, answer):
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"text": TOKENIZER.render(messages)}


@pytest.mark.parametrize("count", [0, 36, 40])
def test_rows_in_the_template_s_own_format(tmp_path, count):
    by_hand = texts(TEXT_FORMS["alpaca"])[count:]
    rows = [rendered(f"Which lake is number {at}?", f"Lake {at}.") for at in range(count)]
    codes = run(text_format, write_data(tmp_path, train=[*rows, *by_hand]), TOKENIZER)[1]
    assert codes == ({CODE: "warning"} if count == 0 else {})


def test_a_row_in_ten_may_be_another(tmp_path):
    prose = [{"text": f"Lake {at} lies in the north, high and cold."} for at in range(10)]
    rows = texts(TEXT_FORMS["roles"])
    assert CODE in run(text_format, write_data(tmp_path, train=[*rows, *prose[:4]]), TOKENIZER)[1]
    assert run(text_format, write_data(tmp_path, train=[*rows, *prose]), TOKENIZER)[1] == {}


def test_what_is_not_judged(tmp_path):
    prose = [{"text": f"Rule {at}: a lake is named once. Note: this holds."} for at in range(40)]
    assert run(text_format, write_data(tmp_path, train=prose), TOKENIZER)[1] == {}
    few = write_data(tmp_path, train=texts(TEXT_FORMS["plain"], 7))
    assert run(text_format, few, TOKENIZER)[1] == {}
    turns = write_data(tmp_path, train=[chat("Which lake?", "Lake Nevath.")] * 10)
    assert run(text_format, turns, TOKENIZER)[0].status.value == "skipped"
    assert run(text_format, Dataset.read(DATA / "geography-text"))[0].status.value == "skipped"


def test_a_model_without_a_template(tmp_path):
    folder = model_copy(tmp_path)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    bare = Tokenizer.read(folder)
    assert bare.chat_template is None
    rows = write_data(tmp_path, train=texts(TEXT_FORMS["alpaca"]))
    assert run(text_format, rows, bare)[0].status.value == "skipped"


def test_a_template_that_refuses(tmp_path):
    folder = model_copy(tmp_path, "{{ raise_exception('no') }}")
    rows = write_data(tmp_path, train=texts(TEXT_FORMS["alpaca"]))
    assert run(text_format, rows, Tokenizer.read(folder))[0].status.value == "inconclusive"
