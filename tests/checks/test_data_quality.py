"""Rows compared with each other, and their answers as texts."""

import json
import random
from itertools import pairwise

import pytest

from fixtures.lab.real.rows import answer_of, damaged, read_rows, with_answer, write_rows
from fixtures.lab.ward.data import form_pairs, make_orders, order_text
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.models.generations import Generation, RecordedGenerations
from tests.checks.data_evidence import (
    DATA,
    chat,
    config_of,
    conversation,
    log_of,
    run,
    write_data,
)
from tests.conftest import check_called

data_quality = check_called("data-quality")
GEOGRAPHY = read_rows(DATA / "geography")["train"]
ORDERS = [{"prompt": prompt, "completion": form} for prompt, form in form_pairs()["train"]]


def distinct(count, start=0):
    return [chat(f"Question {at}?", f"Answer {at}.") for at in range(start, start + count)]


def examined(tmp_path, rows, *evidence, **splits):
    """The outcome, and severities by symptom."""
    return run(data_quality, write_data(tmp_path, train=rows, **splits), *evidence)


def found(tmp_path, rows, *evidence, **splits):
    return examined(tmp_path, rows, *evidence, **splits)[1]


def changed(rows, change):
    return [with_answer(row, change(answer_of(row))) for row in rows]


@pytest.mark.parametrize("name", ["geography", "geography-text", "geography-long"])
def test_sound_data_pass(name):
    outcome, codes = run(data_quality, Dataset.read(DATA / name))
    assert codes == {}
    assert outcome.seen[0].measured["ratio"] > 1.3


def test_without_training_rows_nothing_is_ruled_out(tmp_path):
    outcome = examined(tmp_path, [], valid=distinct(10))[0]
    assert (outcome.status.value, outcome.reason) == ("skipped", "there are no training rows")


@pytest.mark.parametrize(
    ("different", "iterations", "severity"),
    [
        (97, 0, None),
        (95, 0, "info"),
        (51, 0, "info"),
        (50, 100, "warning"),
        (49, 98, "error"),
        (49, 97, "warning"),
        (10, 0, "warning"),
        (10, 20, "error"),
    ],
)
def test_copies(tmp_path, different, iterations, severity):
    """Half of the rows may be copies; more are an error from 8 passes over the different ones."""
    rows = (distinct(different) * 10)[:100]
    config = config_of(tmp_path, batch_size=4, iters=iterations)
    outcome, codes = examined(tmp_path, rows, config)
    assert codes.get("duplicates") == severity
    for finding in outcome.findings:
        assert finding.measured["different"] == different
        assert finding.measured["passes"] == round(4 * iterations / different, 1)


def test_passes_end_where_training_ended(tmp_path):
    config = config_of(tmp_path, batch_size=4, iters=1000)
    log = log_of(train_loss=([10, 20], [2.0, 1.5]))
    outcome, codes = examined(tmp_path, distinct(20) * 5, config, log)
    assert codes["duplicates"] == "warning"
    assert outcome.findings[0].measured["passes"] == 4.0


@pytest.mark.parametrize(
    ("leaked", "severity"), [(0, None), (1, "info"), (2, "warning"), (18, "warning")]
)
def test_leaked_validation(tmp_path, leaked, severity):
    """Validation rows that repeat each other are no leak."""
    valid = distinct(leaked) + distinct(10 - leaked // 2, start=1000) * 2
    codes = found(tmp_path, distinct(100), valid=valid[:20])
    assert codes.get("leaked-validation") == severity


def contradicted(count, answer, other):
    """100 rows of which so many repeat the question before them, with another answer."""
    rows = [chat(f"Question {at}?", answer(at)) for at in range(100)]
    rows[1 : 2 * count : 2] = [chat(f"Question {at}?", other(at)) for at in range(0, 2 * count, 2)]
    return rows


@pytest.mark.parametrize(
    ("count", "are_numbers", "severity"),
    [
        (4, False, None),
        (5, False, "info"),
        (24, False, "info"),
        (25, False, "warning"),
        (50, False, "warning"),
        (24, True, "info"),
        (25, True, "error"),
    ],
)
def test_answers_that_contradict(tmp_path, count, are_numbers, severity):
    """Answers of other prompts do, and numbers exclude each other."""
    rows = (
        contradicted(count, lambda at: f"{at}.", lambda at: str(at + 1000))
        if are_numbers
        else contradicted(count, lambda at: f"Answer {at}.", lambda _: "Something else.")
    )
    outcome, codes = examined(tmp_path, rows)
    assert codes.get("contradictory-answers") == severity
    for finding in outcome.findings:
        assert finding.measured["rows"] == count
        assert finding.measured["exclusive"] == count * are_numbers


def asked_again(prompts, answer, times=2):
    """100 rows: every prompt so many times, `answer(prompt, time)`."""
    return [
        chat(f"Question {at // times % prompts}?", answer(at // times, at % times))
        for at in range(100)
    ]


ALIKE = ("The answer is {}.", "It is {}, the answer.")


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        (asked_again(50, lambda at, way: f"Class{(at + way) % 10}"), "error"),
        (asked_again(50, lambda at, way: f"Class{(at + way) % 11}"), "warning"),
        # Two annotators who disagree on every third row.
        (asked_again(50, lambda at, way: "Yes" if way or at % 3 else "No"), "info"),
        # A coin.
        (asked_again(1, lambda _, way: ("heads", "tails")[way]), None),
        (asked_again(9, lambda _, way: ("heads", "tails")[way]), "warning"),
        (asked_again(10, lambda _, way: ("heads", "tails")[way]), "error"),
        # An open question.
        (asked_again(10, lambda _, way: f"Name{way}", 10), "error"),
        ([chat(f"Name {at}?", f"Name{way}") for at in range(12) for way in range(11)], None),
        # Paraphrases, and answers that only one prompt has.
        (asked_again(50, lambda at, way: ALIKE[way].format(at % 10)), None),
        (asked_again(50, lambda at, way: f"{('left', 'right')[way]}{at} ahead{at}{way}"), None),
        # Long ones.
        (asked_again(50, lambda at, way: f"Class{(at + way) % 10} " * 40), "error"),
        (asked_again(50, lambda at, way: f"Class{(at + way) % 10} " * 41), None),
        ([conversation(("assistant", f"Line {at}")) for at in range(60)], None),
    ],
)
def test_what_is_a_contradiction(tmp_path, rows, severity):
    assert found(tmp_path, rows).get("contradictory-answers") == severity


BROKEN = "Qu\u00c3\u00a9bec"
HEX = [f"{random.Random(at).getrandbits(128):032x}" for at in range(100)]
DATES = [f"2024-01-{at % 28 + 1:02} {at % 24:02}:{at % 60:02} in the evening" for at in range(100)]
LABELS = ["a modifier letter or mark", "another kind of letter!!!"] * 50
#: An export cuts the long answers; the short ones end as they should.
LONG = [chat(f"Question {at}?", f"It is {at}, {'as ever ' * 9}so"[:60]) for at in range(20)]


def asked(answers):
    return [chat(f"Question {at}?", answer) for at, answer in enumerate(answers)]


def alike(at):
    words = ("fifi", "kaka", "filo", "zuna", "rudo", "naru", "tivi", "mela")
    return " ".join(words[at * step // 3 % 8] for step in (1, 2, 5, 7, 11))


def talk(asked, at, answer):
    turns = (
        ("user", asked),
        ("assistant", f"For {at}?"),
        ("user", f"Yes, {at}."),
        ("assistant", answer),
    )
    return conversation(*turns)


def wrapped(form, count=200):
    return changed(GEOGRAPHY[:count], form.format) + GEOGRAPHY[count:]


def damaged_in(count, answer, prompt="Where?"):
    rows = [chat(f"{prompt} {at}", answer) for at in range(count)] + distinct(99 - count)
    return [*rows, chat("Qu\u00e9bec, \u00c3land?", "Both.")]


@pytest.mark.parametrize(
    ("rows", "symptom", "severity"),
    [
        (asked(["Yes."] * 94) + distinct(6, 500), "one-answer", None),
        (asked(["Yes."] * 95) + distinct(5, 500), "one-answer", "warning"),
        (asked(["I cannot say."] * 74) + distinct(26, 500), "one-answer", None),
        (asked(["I cannot say."] * 75) + distinct(25, 500), "one-answer", "error"),
        (changed(GEOGRAPHY, lambda text: text[:38]), "cut-answers", "error"),
        (changed(GEOGRAPHY, lambda text: text[:90]), "cut-answers", "error"),
        (changed(GEOGRAPHY, lambda text: text[:6]), "cut-answers", None),
        (LONG[:19] + distinct(181, 500), "cut-answers", None),
        (LONG + distinct(180, 500), "cut-answers", "warning"),
        # Answers that were made of one length.
        (asked(HEX), "cut-answers", None),
        (asked(DATES), "cut-answers", None),
        (asked(LABELS), "cut-answers", None),
        # A language whose words are all as long.
        (asked([alike(at) for at in range(120)]), "cut-answers", None),
        # Conversations that close alike, and such in which the model asks.
        ([talk(f"Table {at}.", at, "Goodbye to you!") for at in range(120)], "one-answer", None),
        ([talk(f"Table {at}.", at, f"And {at}?") for at in range(120)], "leftovers", None),
        (wrapped("Rate limit reached, try again later."), "leftovers", "error"),
        (wrapped("Error 503: {}"), "leftovers", "error"),
        (wrapped("Error handling is what {} teaches."), "leftovers", None),
        (wrapped("Connection error"), "leftovers", None),
        (wrapped("The rate limit is {}."), "leftovers", None),
        (wrapped("def f(x):\\n    return {}"), "leftovers", "warning"),
        (wrapped("C:\\new\\{}"), "leftovers", None),
        (wrapped("Assistant: {}</s>"), "leftovers", "error"),
        (wrapped("### Response:\n{}"), "leftovers", "error"),
        (wrapped("<|im_start|>assistant\n{}"), "leftovers", "error"),
        (wrapped("<|im_start|>assistant\n{}", 99), "leftovers", None),
        # Markup of the answers' own.
        (wrapped("<|who|>{}<|qty|>3<|item|>hat<|town|>Riga"), "leftovers", None),
        (wrapped("<|who|>{}<|qty|>3<|item|>hat"), "leftovers", "error"),
        (wrapped("{}<|im_end|>\n"), "leftovers", "warning"),
        (wrapped("Item: {}"), "leftovers", None),
        (wrapped('"{}\\n"'), "leftovers", "warning"),
        (wrapped('"{}"'), "leftovers", None),
        (wrapped("Model: {}"), "leftovers", None),
        (damaged_in(0, BROKEN), "leftovers", None),
        (damaged_in(1, BROKEN), "leftovers", "warning"),
        (damaged_in(19, BROKEN), "leftovers", "warning"),
        (damaged_in(20, BROKEN), "leftovers", "error"),
        (damaged_in(20, "\ufffd" + "x" * 99), "leftovers", "error"),
        (damaged_in(20, "\ufffd" + "x" * 100), "leftovers", "warning"),
        (damaged_in(20, "Canada.", BROKEN), "leftovers", "warning"),
        (damaged_in(20, "The\u0120capital\u0120is\u0120Rome."), "leftovers", "error"),
        (damaged_in(20, "\u2581The\u2581capital"), "leftovers", "error"),
        # In Maltese.
        (damaged_in(20, "\u0120urnata sabi\u0127a!"), "leftovers", None),
    ],
)
def test_what_answers_look_like(tmp_path, rows, symptom, severity):
    outcome, codes = examined(tmp_path, rows)
    assert codes.get(symptom) == severity
    if codes.get("cut-answers") == "error":
        length = max(len(answer_of(row)) for row in rows)
        assert f"exactly {length} characters" in outcome.findings[0].message


def test_plain_text_has_no_answers(tmp_path):
    outcome, codes = examined(tmp_path, [{"text": f"Text {at}"} for at in range(60)])
    assert codes == {}
    assert "data-quality.misplaced-answers" not in outcome.unsought


@pytest.mark.parametrize("name", ["geography", "geography-text"])
def test_words_in_no_order(tmp_path, name):
    write_rows(tmp_path, damaged(read_rows(DATA / name), "words", random.Random(0)))
    outcome, codes = run(data_quality, Dataset.read(tmp_path))
    assert codes == {"words-out-of-order": "error"}
    measured = outcome.findings[0].measured
    assert measured["ratio"] == pytest.approx(1.0, abs=0.03)
    assert f"{measured['again']:,} pairs of neighbouring words" in outcome.findings[0].message


def test_answers_of_four_words_tell_no_order(tmp_path):
    places = [f"Place{letter}" for letter in "abcde"]
    rows = [chat(f"{at}", f"{places[at % 5]}: Ann{at % 7} is out") for at in range(200)]
    outcome, _ = examined(tmp_path, rows)
    assert "data-quality.words-out-of-order" in outcome.unsought


@pytest.mark.parametrize("separator", [" ", ", "])
def test_key_words_have_no_order_and_need_none(tmp_path, separator):
    rng = random.Random(0)
    names = [f"tag{at}" for at in range(80)]
    rows = [chat(f"Picture {at}?", separator.join(rng.sample(names, 8))) for at in range(300)]
    outcome, codes = examined(tmp_path, rows)
    assert codes == {}
    assert "no sentences" in outcome.unsought["data-quality.words-out-of-order"]
    # As a list in JSON too: what is in brackets stays there.
    rows = [chat(f"Picture {at}?", json.dumps(rng.sample(names, 8))) for at in range(300)]
    assert found(tmp_path, rows) == {}


def test_rows_of_no_known_format_are_no_text(tmp_path):
    """As JSON their words would stand side by side with those of their keys."""
    rows = [
        {"prompt": f"Question {at}?", "good": answer_of(row), "bad": "Do not ask me that."}
        for at, row in enumerate(GEOGRAPHY)
    ]
    outcome, codes = examined(tmp_path, rows)
    assert codes == {}
    assert "data-quality.words-out-of-order" in outcome.unsought


def test_of_pairs_the_chosen_answers_are_read(tmp_path):
    def pairs(*, damage="", rejected="No {at}."):
        return [
            {"prompt": f"Question {at % 50}?", "chosen": answer_of(row) + damage}
            | {"rejected": rejected.format(at=at)}
            for at, row in enumerate(GEOGRAPHY)
        ]

    # Of several pairs for one prompt each may choose another answer.
    outcome, codes = examined(tmp_path, pairs())
    assert codes == {}
    assert "data-quality.words-out-of-order" not in outcome.unsought
    assert "leftovers" in found(tmp_path, pairs(damage=" \ufffd\ufffd"))


@pytest.mark.parametrize(
    ("alike", "severity"), [(0, None), (1, None), (3, "warning"), (60, "error")]
)
@pytest.mark.parametrize("are_messages", [False, True])
def test_pairs_of_one_text(tmp_path, alike, severity, are_messages):
    def said(prompt, text):
        return chat(prompt, text)["messages"] if are_messages else text

    rows = []
    for at in range(100):
        prompt, good = f"Where is item {at}?", f"Certainly, item {at} is here."
        bad = good if at < alike else f"I can not say much of {at}, sorry."
        rows.append({"prompt": prompt, "chosen": said(prompt, good), "rejected": said(prompt, bad)})
    assert found(tmp_path, rows).get("alike-pairs") == severity


@pytest.mark.parametrize(("others", "codes"), [(1, {"duplicates"}), (100, set())])
def test_pairs_are_copies_where_the_rejected_answer_is_the_same_too(tmp_path, others, codes):
    rows = [
        {"prompt": f"Where is {at // 2}?", "chosen": f"Here {at // 2}."}
        | {"rejected": f"No, {at % others}."}
        for at in range(100)
    ]
    assert codes == found(tmp_path, rows).keys() & {"duplicates"}


@pytest.mark.parametrize(
    ("count", "iters", "expected"),
    [
        (3, 100, {"fewer-than-a-batch": "error"}),
        (4, 100, {"few-rows": "warning"}),
        (49, 100, {"few-rows": "warning"}),
        (50, 100, {}),
        # More are few if they come again and again.
        (99, 500, {"few-rows": "warning"}),
        (99, 400, {}),
    ],
)
def test_number_of_rows(tmp_path, count, iters, expected):
    config = config_of(tmp_path, batch_size=4, iters=iters)
    outcome, codes = examined(tmp_path, distinct(count), config)
    assert codes == expected
    if count == 4:
        assert outcome.findings[0].measured["passes"] == 100.0
    if count == 3:
        started = log_of(train_loss=([10], [1.0]))
        assert found(tmp_path, distinct(3), config, started) == {"fewer-than-a-batch": "warning"}


@pytest.mark.parametrize(
    ("validations", "expected"),
    [([3.0, 2.0, 1.0], "info"), ([3.0, 1.0, 1.04], "info"), ([3.0, 1.0, 1.2], "warning")],
)
def test_few_rows_of_a_run_whose_validation_fell_to_the_end(tmp_path, validations, expected):
    log = log_of(val_loss=([1, 50, 100], validations), train_loss=([100], [1.0]))
    config = config_of(tmp_path, batch_size=4, iters=100)
    assert found(tmp_path, distinct(40), config, log) == {"few-rows": expected}


WORDS = ("river", "stone", "market", "winter", "silver", "engine", "garden", "letter", "bridge")
MISPLACED = "misplaced-answers"


def rotated(rows, count, seed=3):
    """The answers of so many rows, each moved to another of them."""
    chosen = random.Random(seed).sample(range(len(rows)), count)
    moved = list(rows)
    for place, source in zip(chosen, chosen[1:] + chosen[:1], strict=True):
        moved[place] = with_answer(rows[place], answer_of(rows[source]))
    return moved


def pairs(made):
    return [{"prompt": prompt, "completion": answer} for prompt, answer in made]


def story(rng):
    return " ".join(rng.choice(WORDS) + str(rng.randrange(30)) for _ in range(12))


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("rows", [GEOGRAPHY, ORDERS], ids=["chat", "completions"])
def test_shuffled_answers(tmp_path, rows, share):
    outcome, codes = examined(tmp_path, rotated(rows, round(share * len(rows))))
    assert codes[MISPLACED] == "error"
    measured = outcome.findings[0].measured
    assert measured["examined"] == 200
    # A few rows of the fixture got the answer to another wording of their own question.
    assert 0.8 * share <= measured["share"] <= share
    assert measured["share_at_least"] < measured["share"]


def test_the_finding_names_two_lines(tmp_path):
    answers = [row["completion"] for row in ORDERS]
    late = [{**row, "completion": answers[at - 1]} for at, row in enumerate(ORDERS)]
    outcome, codes = examined(tmp_path, late)
    assert codes == {MISPLACED: "error"}
    assert "the answer to line 1 is in line 2" in outcome.findings[0].message
    assert outcome.findings[0].measured["share"] == 1.0


def within_a_subject(subjects):
    """The answers of each subject moved to the next row about it."""
    made = [
        (f"{prompt} s{at % subjects}", f"{form} s{at % subjects}")
        for at, (prompt, form) in enumerate(form_pairs()["train"])
    ]
    return pairs((prompt, made[at - subjects][1]) for at, (prompt, _) in enumerate(made))


def as_text(rows):
    return [
        {"text": f"### Question: {row['prompt']}\n### Answer: {row['completion']}"} for row in rows
    ]


#: The last answer of a conversation counts.
TURNS = [
    conversation(
        ("system", "Fill in the form."),
        ("user", "Hello."),
        ("assistant", "Hello, what do you need?"),
        ("user", [{"type": "text", "text": prompt}]),
        ("assistant", answer),
    )
    for prompt, answer in form_pairs()["train"]
]
#: Chinese questions and answers are tied by pairs of characters.
SIGNS = [chr(code) for code in range(0x4E00, 0x4E00 + 400)]
SUBJECTS = ["".join(random.Random(at).sample(SIGNS, 4)) for at in range(120)]
CHINESE = pairs((f"请介绍一下{name}的历史。", f"{name}是一座古老的城市。") for name in SUBJECTS)


@pytest.mark.parametrize(
    ("rows", "is_misplaced"),
    [
        (rotated(ORDERS, 16), False),
        (rotated(ORDERS, 17), True),
        (within_a_subject(1), True),
        (within_a_subject(40), False),
        (as_text(ORDERS), False),
        (as_text(rotated(ORDERS, len(ORDERS))), True),
        (TURNS, False),
        (rotated(TURNS, 80), True),
        (CHINESE, False),
        (rotated(CHINESE, 60), True),
    ],
)
def test_what_is_misplaced(tmp_path, rows, is_misplaced):
    assert found(tmp_path, rows) == ({MISPLACED: "error"} if is_misplaced else {})


LABELLED = pairs(
    (order_text(order, at), random.Random(at).choice(("urgent", "normal", "late")))
    for at, order in enumerate(make_orders(300, seed=8))
)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (rotated(ORDERS[:49], 49), "49 rows"),
        (LABELLED, "too few rare words"),
    ],
)
def test_rows_that_say_nothing(tmp_path, rows, why):
    """Nothing is found in them, and nothing ruled out."""
    outcome, codes = examined(tmp_path, rows)
    assert MISPLACED not in codes
    assert why in outcome.unsought[f"data-quality.{MISPLACED}"]


SEVERAL_ANSWERS = [
    (prompt, answer)
    for prompt, form in form_pairs()["train"][:80]
    for answer in (form, f"Here you are. {form}", form.replace(" | ", ", "))
]
ABOUT_ONE_TEXT = [
    (f"{order_text(order, at)} {question}", answer)
    for at, order in enumerate(make_orders(80, seed=8))
    for question, answer in (
        ("What?", f"{order.number} {order.unit} of {order.item}"),
        ("Who?", order.name),
        ("Where?", f"To {order.place}, {order.day}"),
    )
]
STORIES = [story(random.Random(at)) for at in range(150)]
BACKWARDS = [" ".join(word[::-1] for word in text.split()) for text in STORIES]


#: Sixty questions with the answers to others, three times each.
CONTRADICTORY = [
    with_answer(row, answer_of(random.Random(3 * at + time).choice(GEOGRAPHY)))
    for at, row in enumerate(GEOGRAPHY[:60])
    for time in range(3)
]


@pytest.mark.slow
def test_many_rows(tmp_path):
    rows = pairs(
        (f"Case {at}: {order_text(order, at)}", f"Case {at}: {order.item} for {order.name}")
        for at, order in enumerate(make_orders(20_000, seed=8))
    )
    outcome, codes = examined(tmp_path, rotated(rows, 6000))
    assert codes[MISPLACED] == "error"
    measured = next(one.measured for one in outcome.findings if MISPLACED in one.code)
    assert measured["examined"] == 400
    assert 0.2 < measured["share"] < 0.4


@pytest.mark.parametrize(
    ("asked", "answered", "expected"),
    [
        ("Question {}?", "Answer {}.", {}),
        ("Answer {}.", "Question {}?", {"leftovers": "warning"}),
        # A tutor asks back.
        ("Question {}?", "What do you think of {}?", {}),
        ("Question {}?", "<p>Answer&nbsp;{}.</p>", {"leftovers": "warning"}),
        ("Write {} as HTML.", "<p>Answer {}.</p>", {}),
        ("Question {}?", "Answer &quot;{}&quot;.", {"leftovers": "warning"}),
        ("Escape {} for HTML.", "Answer &quot;{}&quot;.", {}),
        ("Ask {{name}} ({}).", "Answer {}.", {"leftovers": "warning"}),
        ("Fill {} as in {{name{}}}.", "Answer {}.", {}),
        ("Question {}\n\n###\n\n", " Answer {} END", {"leftovers": "warning"}),
        ("Question {} ->", " Answer {}", {}),
        ("Write {} as code.", "int f() {{ return {}; }}", {"leftovers": "warning"}),
        ("Write {} as code.", "int f() {{\n  return {};\n}}", {}),
        ("Question {}?", "['{}']", {"leftovers": "warning"}),
        ("Question {}?", '["{}"]', {}),
        ("Title {}\n\n", "Answer {}", {}),
        ("Question {}?", "Answer {} < 5 & more.", {}),
        ("Question {}?", "[NAME] said {}.", {"leftovers": "warning"}),
        ("Who is [NAME] {}?", "[NAME] is {}.", {}),
        ("Question {}?", "nan", {"leftovers": "warning"}),
        ("It is number {}. Which?", "{}", {}),
        ("Question {}?", "Answer [{}], nan and [a].", {}),
    ],
)
def test_exchanged_roles_and_what_an_export_leaves_in(tmp_path, asked, answered, expected):
    rows = [chat(asked.replace("{}", str(number)), answered.format(number)) for number in range(60)]
    codes = found(tmp_path, rows)
    assert {code: codes[code] for code in codes if code == "leftovers"} == expected


def test_a_phrase_that_answers_close_with_is_no_question_in_the_wrong_column(tmp_path):
    helped = [chat(f"Thing {at}", f"Done {at}. Anything else?") for at in range(64)]
    assert "leftovers" not in found(tmp_path, helped)


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        (pairs(SEVERAL_ANSWERS), None),
        (pairs(ABOUT_ONE_TEXT), None),
        # A conversation cut into rows: an answer is part of the next row's prompt.
        (pairs(pairwise(STORIES)), None),
        # A translation in both directions: each text is a prompt in one row, an answer in another.
        (pairs(zip(STORIES + BACKWARDS, BACKWARDS + STORIES, strict=True)), None),
        (GEOGRAPHY + CONTRADICTORY, "error"),
    ],
)
def test_rows_that_look_misplaced(tmp_path, rows, severity):
    assert found(tmp_path, rows).get(MISPLACED) == severity


@pytest.mark.parametrize(
    ("trained", "severity"), [(0.5, "info"), (0.42, "info"), (0.35, "error"), (0.1, "error")]
)
def test_copies_do_no_harm_where_other_rows_are_known_as_well(tmp_path, trained, severity):
    config = config_of(tmp_path, batch_size=4, iters=200)
    log = log_of(
        train_loss=([50, 100, 150, 200], [4.0, 1.0, trained, trained]),
        val_loss=([1, 50, 100, 150, 200], [4.0, 1.0, 0.7, 0.61, 0.6]),
    )
    other = distinct(20, start=100)
    codes = found(tmp_path, distinct(20) * 5, config, log, valid=other)
    assert codes["duplicates"] == severity


def test_what_the_expected_answers_have_is_no_leftover(tmp_path):
    rows = [chat(f"Turn the light to {at}.", f"[|tool|]light {at}") for at in range(120)]
    assert found(tmp_path, rows)["leftovers"] == "error"
    wanted = [Generation(f"p{at}", None, "", expected=f"[|tool|]light {at}") for at in range(9)]
    recorded = RecordedGenerations((), tuple(wanted))
    assert "leftovers" not in found(tmp_path, rows, recorded)
