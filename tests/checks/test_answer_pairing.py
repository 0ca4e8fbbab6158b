"""Answers that belong to other prompts, and sound rows that look like it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fixtures.lab.ward.data import form_pairs, make_orders, order_text
from mlxdoctor.evidence.dataset import Dataset
from tests.checks.data_evidence import DATA, chat, run, write_data
from tests.conftest import check_called

answer_pairing = check_called("answer-pairing")
CODE = "answer-pairing.misplaced-answers"
CODES = {
    "error": {CODE: "error"},
    "warning": {"answer-pairing.some-misplaced-answers": "warning"},
    None: {},
}

WORDS = ("river", "stone", "market", "winter", "silver", "engine", "garden", "letter", "bridge")


def geography():
    return list(Dataset.read(DATA / "geography").splits["train"].rows)


def rotated(rows, count, seed=3):
    """The answers of so many rows, each moved to another of them."""
    chosen = random.Random(seed).sample(range(len(rows)), count)
    moved = list(rows)
    for place, source in zip(chosen, chosen[1:] + chosen[:1], strict=True):
        row, other = dict(rows[place]), rows[source]
        if "messages" in row:
            row["messages"] = [*row["messages"][:-1], other["messages"][-1]]
        else:
            row["completion"] = other["completion"]
        moved[place] = row
    return moved


def orders():
    return [{"prompt": prompt, "completion": form} for prompt, form in form_pairs()["train"]]


def pairs(made):
    return [{"prompt": prompt, "completion": answer} for prompt, answer in made]


def test_sound_data_pass(tmp_path):
    outcome, codes = run(answer_pairing, Dataset.read(DATA / "geography"))
    assert (outcome.status.value, codes) == ("passed", {})
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=orders()))
    assert (outcome.status.value, codes) == ("passed", {})
    assert run(answer_pairing)[0].status.value == "skipped"


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("rows", [geography(), orders()], ids=["chat", "completions"])
def test_shuffled_answers(tmp_path, rows, share):
    moved = rotated(rows, round(share * len(rows)))
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=moved))
    assert codes == {CODE: "error"}
    measured = outcome.findings[0].measured
    assert measured["examined"] == 200
    # A few rows of the fixture got the answer to another wording of their own question.
    assert 0.8 * share <= measured["share"] <= share
    assert measured["share_at_least"] < measured["share"]


@pytest.mark.parametrize(
    ("misplaced", "severity"), [(9, None), (10, "warning"), (16, "warning"), (17, "error")]
)
def test_share_of_misplaced_rows(tmp_path, misplaced, severity):
    moved = rotated(orders(), misplaced)
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=moved))
    assert codes == CODES[severity]
    if severity:
        assert outcome.findings[0].measured["misplaced"] == misplaced


def test_the_finding_names_two_lines(tmp_path):
    rows = orders()
    answers = [row["completion"] for row in rows]
    late = [{**row, "completion": answers[at - 1]} for at, row in enumerate(rows)]
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=late))
    assert codes == {CODE: "error"}
    assert "that to line 1 of train.jsonl is in line 2" in outcome.findings[0].message
    assert outcome.findings[0].measured["share"] == 1.0


def test_contradictory_rows(tmp_path):
    rows = geography()
    rng = random.Random(1)
    wrong = [
        {"messages": [row["messages"][0], rng.choice(rows)["messages"][-1]]}
        for row in rng.sample(rows, 60)
        for _ in range(3)
    ]
    _, codes = run(answer_pairing, write_data(tmp_path, train=rows + wrong))
    assert codes == {CODE: "error"}


@pytest.mark.parametrize(("subjects", "severity"), [(1, "error"), (40, "warning")])
def test_answers_shuffled_within_a_subject(tmp_path, subjects, severity):
    rows = [
        {"prompt": f"{prompt} s{at % subjects}", "completion": f"{form} s{at % subjects}"}
        for at, (prompt, form) in enumerate(form_pairs()["train"])
    ]
    answers = [row["completion"] for row in rows]
    late = [{**row, "completion": answers[at - subjects]} for at, row in enumerate(rows)]
    _, codes = run(answer_pairing, write_data(tmp_path, train=late))
    assert codes == CODES[severity]


@pytest.mark.parametrize(("count", "status"), [(49, "inconclusive"), (50, "found")])
def test_number_of_rows(tmp_path, count, status):
    moved = rotated(orders()[:count], count)
    assert run(answer_pairing, write_data(tmp_path, train=moved))[0].status.value == status


def test_labels_say_nothing(tmp_path):
    rng = random.Random(0)
    rows = pairs(
        (order_text(order, at), rng.choice(("urgent", "normal", "late")))
        for at, order in enumerate(make_orders(300, seed=8))
    )
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=rows))
    assert (outcome.status.value, codes) == ("inconclusive", {})
    assert "too few rare words" in outcome.reason


def test_plain_text_has_no_answers_to_be_misplaced(tmp_path):
    rows = [{"text": f"Text {at}"} for at in range(60)]
    outcome, _ = run(answer_pairing, write_data(tmp_path, train=rows))
    assert outcome.status.value == "skipped"
    assert "plain text" in outcome.reason
    assert not outcome.arises


def as_text(rows):
    return [
        {"text": f"### Question: {one['prompt']}\n### Answer: {one['completion']}"} for one in rows
    ]


def folder(path, name):
    (path / name).mkdir()
    return path / name


def test_questions_and_answers_written_as_text(tmp_path):
    outcome, codes = run(
        answer_pairing, write_data(folder(tmp_path, "sound"), train=as_text(orders()))
    )
    assert (outcome.status.value, codes) == ("passed", {})
    moved = as_text(rotated(orders(), len(orders())))
    assert (
        run(answer_pairing, write_data(folder(tmp_path, "moved"), train=moved))[1] == CODES["error"]
    )
    # Some of the texts are something else: nothing is said, and nothing ruled out.
    mixed = moved[:100] + [{"text": f"Text {at}"} for at in range(100)]
    outcome, codes = run(answer_pairing, write_data(folder(tmp_path, "mixed"), train=mixed))
    assert (outcome.status.value, codes, outcome.arises) == ("skipped", {}, True)


def test_several_answers_to_a_prompt(tmp_path):
    forms = form_pairs()["train"][:80]
    rows = pairs(
        (prompt, answer)
        for prompt, form in forms
        for answer in (form, f"Here you are. {form}", form.replace(" | ", ", "))
    )
    outcome, codes = run(answer_pairing, write_data(tmp_path, train=rows))
    assert (outcome.status.value, codes) == ("passed", {})


def test_many_questions_about_one_text(tmp_path):
    rows = pairs(
        (f"{order_text(order, at)} {question}", str(answer))
        for at, order in enumerate(make_orders(80, seed=8))
        for question, answer in (
            ("What?", f"{order.number} {order.unit} of {order.item}"),
            ("Who?", order.name),
            ("Where?", f"To {order.place}, {order.day}"),
        )
    )
    _, codes = run(answer_pairing, write_data(tmp_path, train=rows))
    assert codes == {}


def story(rng):
    return " ".join(rng.choice(WORDS) + str(rng.randrange(30)) for _ in range(12))


def test_a_conversation_cut_into_rows(tmp_path):
    """The answer of a row is part of the next row's prompt: copied, not misplaced."""
    rng = random.Random(2)
    said = [story(rng) for _ in range(300)]
    rows = pairs(pairwise(said))
    assert run(answer_pairing, write_data(tmp_path, train=rows))[1] == {}
    history = [
        {
            "messages": [
                {"role": ("user", "assistant")[at % 2], "content": said[at]}
                for at in range(start, start + 4)
            ]
        }
        for start in range(0, 290, 2)
    ]
    assert run(answer_pairing, write_data(tmp_path, train=history))[1] == {}


def test_translation_in_both_directions(tmp_path):
    """Each English text is a prompt in one row and an answer in another."""
    rng = random.Random(4)
    english = [story(rng) for _ in range(150)]
    other = [" ".join(word[::-1] for word in text.split()) for text in english]
    rows = pairs([*zip(english, other, strict=True), *zip(other, english, strict=True)])
    assert run(answer_pairing, write_data(tmp_path, train=rows))[1] == {}


def test_the_last_answer_of_a_conversation_counts(tmp_path):
    forms = form_pairs()["train"]
    turns = [
        {
            "messages": [
                {"role": "system", "content": "Fill in the form."},
                *chat("Hello.", "Hello, what do you need?")["messages"],
                *chat([{"type": "text", "text": prompt}], answer)["messages"],
            ]
        }
        for prompt, answer in forms
    ]
    assert run(answer_pairing, write_data(tmp_path, train=turns))[1] == {}
    _, codes = run(answer_pairing, write_data(tmp_path, train=rotated(turns, 80)))
    assert codes == {CODE: "error"}


def test_text_without_spaces(tmp_path):
    """Chinese questions and answers are tied by pairs of characters."""
    rng = random.Random(6)
    signs = [chr(code) for code in range(0x4E00, 0x4E00 + 400)]
    subjects = ["".join(rng.sample(signs, 4)) for _ in range(120)]
    rows = pairs((f"请介绍一下{one}的历史。", f"{one}是一座古老的城市。") for one in subjects)
    assert run(answer_pairing, write_data(tmp_path, train=rows))[1] == {}
    _, codes = run(answer_pairing, write_data(tmp_path, train=rotated(rows, 60)))
    assert codes == {CODE: "error"}


@pytest.mark.slow
def test_many_rows(tmp_path):
    rows = pairs(
        (f"Case {at}: {order_text(order, at)}", f"Case {at}: {order.item} for {order.name}")
        for at, order in enumerate(make_orders(20_000, seed=8))
    )
    dataset = write_data(tmp_path, train=rotated(rows, 6000))
    outcome, codes = run(answer_pairing, dataset)
    assert codes == {CODE: "error"}
    assert outcome.findings[0].measured["examined"] == 400
    assert 0.2 < outcome.findings[0].measured["share"] < 0.4
