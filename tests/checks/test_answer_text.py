"""Answers whose words stand in no order, and answers full of escapes."""

from __future__ import annotations

import json
import random
import time

import pytest

from fixtures.lab.real.rows import damaged, read_rows, with_answer, write_rows
from mlxdoctor.engines.text import LONGEST, is_nested, word_order
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.measure.text.outputs import answer_words
from tests.checks.data_evidence import DATA, FIXTURES, chat, run, write_data
from tests.conftest import check_called

answer_text = check_called("answer-text")
ORDER, ESCAPED = "answer-text.words-out-of-order", "answer-text.escaped-answers"


def spoilt(tmp_path, level, name="geography"):
    """Rows of the fixtures, damaged as a person damages them."""
    write_rows(tmp_path, damaged(read_rows(DATA / name), level, random.Random(0)))
    return Dataset.read(tmp_path)


@pytest.mark.parametrize("name", ["geography", "geography-text", "geography-long"])
def test_sound_rows_are_in_order(name):
    outcome, codes = run(answer_text, Dataset.read(DATA / name))
    assert codes == {}
    assert outcome.seen[0].measured["ratio"] > 1.3
    assert run(answer_text)[0].status.value == "skipped"


def test_pairs_of_answers_are_no_text(tmp_path):
    """As JSON their words would stand side by side with those of their keys."""
    ends = ("I can say more of it.", "Is there more I can say?", "Ask me more of it.")
    rows = [
        {"prompt": question["content"], "chosen": f"{answer['content']} {ends[at % 3]}"}
        | {"rejected": f"{answer['content']} Do not ask me that."}
        for at, (question, answer) in enumerate(
            one["messages"] for one in read_rows(DATA / "geography")["train"]
        )
    ]
    outcome, codes = run(answer_text, write_data(tmp_path, train=rows))
    assert codes == {}
    assert outcome.status.value == "skipped"


@pytest.mark.parametrize("name", ["geography", "geography-text"])
def test_words_in_no_order(tmp_path, name):
    outcome, codes = run(answer_text, spoilt(tmp_path, "words", name))
    assert codes == {ORDER: "error"}
    measured = outcome.findings[0].measured
    assert measured["ratio"] == pytest.approx(1.0, abs=0.03)
    assert f"{measured['again']:,} neighbouring words" in outcome.findings[0].message


def paragraphs():
    text = "\n\n".join(path.read_text() for path in sorted((FIXTURES.parent / "docs").glob("*.md")))
    return [one for one in text.split("\n\n") if len(one.split()) > 8 and "|" not in one][:300]


def test_prose_is_far_from_the_limit(tmp_path):
    found = word_order(paragraphs())
    assert found.ratio > 1.5
    rng = random.Random(0)
    mixed = [" ".join(rng.sample(one.split(), len(one.split()))) for one in paragraphs()]
    assert word_order(mixed).ratio < 1.1
    rows = [chat(f"Question {at}?", one) for at, one in enumerate(mixed)]
    assert run(answer_text, write_data(tmp_path, train=rows))[1] == {ORDER: "error"}


def records(rng):
    keys = ["name", "size", "colour", "owner", "weight"]
    for _ in range(300):
        yield json.dumps({key: rng.randrange(60) for key in keys})


def test_json_whose_brackets_close_before_they_open(tmp_path):
    rng = random.Random(0)
    sound = [chat(f"Thing {at}?", one) for at, one in enumerate(records(rng))]
    assert run(answer_text, write_data(tmp_path, train=sound))[1] == {}
    mixed = [with_answer(row, " ".join(_dealt(row, rng))) for row in sound]
    assert run(answer_text, write_data(tmp_path, train=mixed))[1] == {ORDER: "error"}


def _dealt(row, rng):
    words = row["messages"][-1]["content"].split()
    return rng.sample(words, len(words))


@pytest.mark.parametrize("separator", [" ", ", "])
def test_key_words_have_no_order_and_need_none(tmp_path, separator):
    rng = random.Random(0)
    names = [f"tag{at}" for at in range(80)]
    rows = [chat(f"Picture {at}?", separator.join(rng.sample(names, 8))) for at in range(300)]
    outcome, codes = run(answer_text, write_data(tmp_path, train=rows))
    assert codes == {}
    assert "no sentences" in outcome.unsought[ORDER]
    # As a list in JSON too: what is in brackets stays there.
    rows = [chat(f"Picture {at}?", json.dumps(rng.sample(names, 8))) for at in range(300)]
    assert run(answer_text, write_data(tmp_path, train=rows))[1] == {}


def test_few_rows_are_not_judged(tmp_path):
    dataset = spoilt(tmp_path, "words", "geography-tiny")
    outcome, codes = run(answer_text, dataset)
    assert codes == {}
    assert outcome.unsought


def test_answers_full_of_escapes(tmp_path):
    outcome, codes = run(answer_text, spoilt(tmp_path, "html"))
    assert codes == {ESCAPED: "error"}
    assert outcome.findings[0].measured["share"] == 1.0
    assert "200 of 200 answers" in outcome.findings[0].message


PAGE = "<ul><li>Tea&nbsp;&amp; coffee</li><li>Salt &lt; 5 g</li></ul><p>Sold by the shore.</p>"


@pytest.mark.parametrize(
    ("question", "answer", "severity"),
    [
        ("What is sold?", "Tea&#44;&nbsp;coffee&#44;&nbsp;salt&#46;", "error"),
        ("What is sold?", "Tea&amp;nbsp;and&amp;nbsp;salt", "error"),
        ("What is sold?", "tea%20and%20salt", "error"),
        # A page, which needs its tags and has an escape or two.
        ("What is sold?", PAGE, None),
        ("What is sold?", "if (a &lt; b &amp;&amp; c &gt; d) return a &amp; b;", None),
        ("What is sold?", "Tea & coffee; salt, 20% off.", None),
        ("Write it as HTML.", "Tea&#44;&nbsp;coffee&#44;&nbsp;salt&#46;", None),
        ("Read %20 and&nbsp;this", "Tea&#44;&nbsp;coffee&#44;&nbsp;salt&#46;", None),
    ],
)
def test_escapes(tmp_path, question, answer, severity):
    rows = [chat(f"{question} {at}", f"{answer} {at}") for at in range(20)]
    assert run(answer_text, write_data(tmp_path, train=rows))[1].get(ESCAPED) == severity


@pytest.mark.parametrize(("count", "severity"), [(4, None), (5, "warning"), (20, "error")])
def test_a_share_of_escaped_answers(tmp_path, count, severity):
    rows = [
        chat(f"Question {at}?", "Tea&nbsp;and&nbsp;salt" if at < count else "Tea and salt")
        for at in range(100)
    ]
    assert run(answer_text, write_data(tmp_path, train=rows))[1].get(ESCAPED) == severity


@pytest.mark.parametrize(
    ("text", "nested"),
    [("f(a[1], {})", True), ("b) f(a", False), ("(a]", False), ("f(a", False), ("a b", None)],
)
def test_brackets(text, nested):
    assert is_nested(text) is nested


def test_what_is_too_long_for_an_answer_costs_no_more_than_its_beginning() -> None:
    text = "word " * 4_000_000 + "("
    begun = time.process_time()
    assert len(answer_words(text)) == LONGEST // 5
    assert is_nested(text) is None
    assert word_order([text, text]).words == 200
    assert time.process_time() - begun < 2
