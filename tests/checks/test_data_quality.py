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
    ("repeats", "severity"), [(4, None), (5, "info"), (49, "info"), (50, "warning")]
)
def test_duplicates(tmp_path, repeats, severity):
    rows = distinct(100 - repeats) + distinct(1) * repeats
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.duplicates") == severity


@pytest.mark.parametrize(("leaked", "severity"), [(0, None), (1, "info"), (2, "warning")])
def test_leaked_validation(tmp_path, leaked, severity):
    valid = distinct(leaked) + distinct(20 - leaked, start=1000)
    _, codes = run(data_quality, write_data(tmp_path, train=distinct(100), valid=valid))
    assert codes.get("data-quality.leaked-validation") == severity


@pytest.mark.parametrize(
    ("contradicted", "severity"), [(4, None), (6, "info"), (48, "info"), (50, "warning")]
)
def test_contradictory_answers(tmp_path, contradicted, severity):
    rows = distinct(100)
    for at in range(0, contradicted, 2):
        rows[at + 1] = chat(f"Question {at}?", "Something else.")
    outcome, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.contradictory-answers") == severity
    if severity:
        assert outcome.findings[0].measured["rows"] == contradicted


@pytest.mark.parametrize(("same", "severity"), [(94, None), (95, "warning")])
def test_one_answer(tmp_path, same, severity):
    rows = [chat(f"Question {at}?", "Yes.") for at in range(same)] + distinct(100 - same, 500)
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.one-answer") == severity


def test_plain_text_has_no_answers(tmp_path):
    rows = [{"text": f"Text {at}"} for at in range(60)]
    assert run(data_quality, write_data(tmp_path, train=rows))[1] == {}


@pytest.mark.parametrize(("damaged", "severity"), [(0, None), (1, "warning")])
def test_damaged_text(tmp_path, damaged, severity):
    rows = distinct(100)
    rows[:damaged] = [chat("Qu\u00c3\u00a9bec?", "Canada.")] * damaged
    rows[50] = chat("Qu\u00e9bec, \u00c3land?", "Both.")
    _, codes = run(data_quality, write_data(tmp_path, train=rows))
    assert codes.get("data-quality.damaged-text") == severity


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
