"""Rows compared with each other."""

from __future__ import annotations

import pytest

from mlxdoctor.evidence.dataset import Dataset
from tests.checks.data_evidence import DATA, chat, config_of, log_of, run, write_data
from tests.conftest import check_called

data_quality = check_called("data-quality")


def distinct(count, start=0):
    return [chat(f"Question {at}?", f"Answer {at}.") for at in range(start, start + count)]


def test_sound_data_pass():
    outcome, codes = run(data_quality, Dataset.read(DATA / "geography"))
    assert codes == {}
    assert outcome.status.value == "passed"
    assert run(data_quality)[0].status.value == "skipped"


@pytest.mark.parametrize(
    ("repeats", "severity"),
    [(4, None), (5, "info"), (49, "info"), (50, "warning"), (90, "warning")],
)
def test_duplicates(tmp_path, repeats, severity):
    rows = distinct(100 - repeats) + distinct(1) * repeats
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.duplicates") == severity


@pytest.mark.parametrize(
    ("different", "iterations", "severity"),
    [(50, 100, "warning"), (49, 98, "error"), (49, 97, "warning"), (10, 20, "error")],
)
def test_copies_gone_over_many_times(tmp_path, different, iterations, severity):
    """Half of the rows may be copies; more are an error from 8 passes over the different ones."""
    rows = (distinct(different) * 10)[:100]
    config = config_of(tmp_path, batch_size=4, iters=iterations)
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows), config)
    code = "mostly-copies" if severity == "error" else "duplicates"
    assert codes[f"data-quality.{code}"] == severity
    measured = outcome.findings[0].measured
    assert measured["different"] == different
    assert measured["passes"] == round(4 * iterations / different, 1)


def test_passes_end_where_training_ended(tmp_path):
    rows = distinct(20) * 5
    config = config_of(tmp_path, batch_size=4, iters=1000)
    log = log_of(train_loss=([10, 20], [2.0, 1.5]))
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows), config, log)
    assert codes["data-quality.duplicates"] == "warning"
    assert outcome.findings[0].measured["passes"] == 4.0


@pytest.mark.parametrize(("leaked", "severity"), [(0, None), (1, "info"), (2, "warning")])
def test_leaked_validation(tmp_path, leaked, severity):
    valid = distinct(leaked) + distinct(20 - leaked, start=1000)
    _, codes = run(data_quality, write_data(tmp_path, train=distinct(100), valid=valid))
    assert codes.get("data-quality.leaked-validation") == severity


def test_nothing_leaks_twice(tmp_path):
    data = write_data(tmp_path, train=distinct(100), valid=distinct(20, start=1000) * 2)
    assert run(data_quality, data)[1] == {}


def contradicted(count, answer, rows=100):
    """Rows of which so many repeat the question before them, with an answer of their own."""
    made = distinct(rows)
    for at in range(0, 2 * count, 2):
        made[at + 1] = chat(f"Question {at}?", answer(at))
    return made


@pytest.mark.parametrize(
    ("count", "severity"), [(4, None), (5, "info"), (24, "info"), (25, "warning"), (50, "warning")]
)
def test_answers_of_other_prompts_contradict(tmp_path, count, severity):
    rows = contradicted(count, lambda _: "Something else.")
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.contradictory-answers") == severity
    if severity:
        assert outcome.findings[0].measured["rows"] == count


@pytest.mark.parametrize(("count", "severity"), [(24, "info"), (25, "error")])
def test_numbers_exclude_each_other(tmp_path, count, severity):
    rows = [chat(f"Question {at}?", f"{at}.") for at in range(100)]
    for at in range(0, 2 * count, 2):
        rows[at + 1] = chat(f"Question {at}?", str(at + 1000))
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes["data-quality.contradictory-answers"] == severity
    assert outcome.findings[0].measured["exclusive"] == count


@pytest.mark.parametrize(("labels", "severity"), [(10, "error"), (11, "warning")])
def test_labels_exclude_each_other(tmp_path, labels, severity):
    rows = [
        chat(f"Question {at // 2}?", f"Class{(at // 2 + at % 2) % labels}") for at in range(100)
    ]
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes == {"data-quality.contradictory-answers": severity}


def test_two_annotators_who_sometimes_disagree(tmp_path):
    """Every third prompt has another label the second time: 17 of 100 rows are outvoted."""
    rows = [chat(f"Question {at // 2}?", "Yes" if at % 6 else "No") for at in range(100)]
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes["data-quality.contradictory-answers"] == "info"


@pytest.mark.parametrize(
    ("wordings", "expected"),
    [
        (1, {"data-quality.several-answers": "info"}),
        (9, {"data-quality.contradictory-answers": "warning"}),
        (10, {"data-quality.contradictory-answers": "error"}),
    ],
)
def test_a_coin_is_no_contradiction(tmp_path, wordings, expected):
    rows = [
        chat(f"Throw coin {at // 2 % wordings}.", ("heads", "tails")[at % 2]) for at in range(100)
    ]
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    codes.pop("data-quality.duplicates")
    assert codes == expected


VARIED = {
    "paraphrases": lambda at, way: (f"The answer is {at}.", f"It is {at}, the answer.")[way],
    "only here": lambda at, way: f"{('left', 'right')[way]}{at} ahead{at}{way}",
    "long": lambda at, way: " ".join(f"w{at}x{way}x{place % 40}" for place in range(41)),
}


@pytest.mark.parametrize("kind", VARIED)
def test_variety_is_no_contradiction(tmp_path, kind):
    rows = [chat(f"Question {at // 2}?", VARIED[kind](at // 2, at % 2)) for at in range(100)]
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes == {"data-quality.several-answers": "info"}
    assert outcome.findings[0].measured["share"] == 1.0


@pytest.mark.parametrize(("answers", "code"), [(10, "contradictory"), (11, "several")])
def test_an_open_question(tmp_path, answers, code):
    names = [f"Name{at}" for at in range(answers)]
    rows = [chat(f"A name for cat {at}?", name) for at in range(12) for name in names]
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert list(codes) == [f"data-quality.{code}-answers"]


def test_rows_without_a_prompt_contradict_nothing(tmp_path):
    rows = [{"messages": [{"role": "assistant", "content": f"Line {at}"}]} for at in range(60)]
    assert run(data_quality, write_data(tmp_path, train=rows))[1] == {}


@pytest.mark.parametrize(("same", "severity"), [(94, None), (95, "warning")])
def test_one_answer(tmp_path, same, severity):
    rows = [chat(f"Question {at}?", "Yes.") for at in range(same)] + distinct(100 - same, 500)
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.one-answer") == severity


def test_plain_text_has_no_answers(tmp_path):
    rows = [{"text": f"Text {at}"} for at in range(60)]
    assert run(data_quality, write_data(tmp_path, train=rows))[1] == {}


BROKEN = "Qu\u00c3\u00a9bec"


@pytest.mark.parametrize(("damaged", "severity"), [(0, None), (1, "warning"), (19, "warning")])
def test_damaged_text(tmp_path, damaged, severity):
    rows = distinct(100)
    rows[:damaged] = [chat(f"Where is town {at}?", f"{BROKEN} {at}.") for at in range(damaged)]
    rows[50] = chat("Qu\u00e9bec, \u00c3land?", "Both.")
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.damaged-text") == severity


@pytest.mark.parametrize(
    ("prompt", "answer", "severity"),
    [
        ("Where?", BROKEN, "error"),
        ("Where?", "\ufffd" + "x" * 99, "error"),
        ("Where?", "\ufffd" + "x" * 100, "warning"),
        (BROKEN, "Canada.", "warning"),
    ],
)
def test_a_fifth_of_the_answers_is_damaged(tmp_path, prompt, answer, severity):
    rows = distinct(80) + [chat(f"{prompt} {at}", answer) for at in range(20)]
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    code = "damaged-answers" if severity == "error" else "damaged-text"
    assert codes == {f"data-quality.{code}": severity}


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (3, {"data-quality.fewer-than-a-batch": "error"}),
        (4, {"data-quality.few-rows": "warning"}),
        (49, {"data-quality.few-rows": "warning"}),
        (50, {}),
    ],
)
def test_number_of_rows(tmp_path, count, expected):
    dataset = write_data(tmp_path, train=distinct(count))
    config = config_of(tmp_path, batch_size=4, iters=100)
    outcome, codes = run(data_quality, dataset, config)
    assert codes == expected
    if count == 4:
        assert outcome.findings[0].measured["passes"] == 100.0
    if count == 3:
        started = log_of(train_loss=([10], [1.0]))
        _, codes = run(data_quality, dataset, config, started)
        assert codes == {"data-quality.fewer-than-a-batch": "warning"}


@pytest.mark.parametrize(
    ("rows", "last", "severity"),
    [(20, 1.6, "error"), (20, 1.0, "warning"), (21, 1.6, "warning"), (50, 1.6, None)],
)
def test_few_rows_learned_by_heart(tmp_path, rows, last, severity):
    """Twenty passes, and a validation loss that rises while the training loss falls."""
    at = list(range(10, 101, 10))
    train = [2.0 / (place + 1) for place in range(10)]
    valid = [2.0, 1.5, 1.2, *(1.2 + (last - 1.2) * place / 7 for place in range(1, 8))]
    log = log_of(train_loss=(at, train), val_loss=(at, valid))
    config = config_of(tmp_path, batch_size=4, iters=100)
    outcome, codes = run(data_quality, write_data(tmp_path, train=distinct(rows)), config, log)
    assert codes.get("data-quality.few-rows") == severity
    if severity == "error":
        assert outcome.findings[0].measured["validation_minimum"] == 1.2
        assert outcome.findings[0].measured["passes"] == 20.0
