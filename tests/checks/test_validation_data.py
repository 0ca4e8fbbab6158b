"""Whether there is anything to validate on."""

from __future__ import annotations

import pytest

from mlxdoctor.evidence.dataset import Dataset
from tests.checks.data_evidence import DATA, chat, config_of, log_of, run, write_data
from tests.conftest import check_called

validation_data = check_called("validation-data")


ROW = chat("a", "b")


def test_sound_data_pass(tmp_path):
    dataset = Dataset.read(DATA / "geography")
    outcome, codes = run(validation_data, dataset, config_of(tmp_path, val_batches=-1))
    assert codes == {}
    assert outcome.status.value == "passed"
    assert run(validation_data)[0].status.value == "skipped"


@pytest.mark.parametrize("splits", [{}, {"valid": ""}])
def test_no_split(tmp_path, splits):
    dataset = write_data(tmp_path, train=[ROW], **splits)
    assert run(validation_data, dataset)[1] == {"validation-data.no-split": "info"}


@pytest.mark.parametrize(
    ("series", "severity"),
    [
        ({"train_loss": ([10, 20], [2.0, 1.0])}, "warning"),
        # It validated on rows that are not here.
        ({"train_loss": ([10, 20], [2.0, 1.0]), "val_loss": ([1, 20], [3.0, 1.0])}, "info"),
        ({"rewards": ([10, 20], [0.1, 0.2]), "train_loss": ([10, 20], [0.7, 0.6])}, "info"),
        ({"grad_norm": ([10], [1.0])}, "info"),
    ],
)
def test_whether_the_run_went_without_one(tmp_path, series, severity):
    dataset = write_data(tmp_path, train=[ROW])
    log = log_of(**series)
    assert run(validation_data, dataset, log)[1] == {"validation-data.no-split": severity}


def test_a_single_file_says_nothing_of_the_others(tmp_path):
    dataset = write_data(tmp_path, train=[ROW])
    assert run(validation_data, Dataset.read(dataset.path / "train.jsonl"))[1] == {}


@pytest.mark.parametrize(("count", "severity"), [(3, "error"), (4, None)])
def test_fewer_rows_than_a_batch(tmp_path, count, severity):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * count)
    config = config_of(tmp_path, batch_size=4)
    _, codes = run(validation_data, dataset, config)
    assert codes.get("validation-data.fewer-than-a-batch") == severity


@pytest.mark.parametrize(("loss", "severity"), [(1.5, "warning"), (float("nan"), "error")])
def test_the_log_may_show_that_it_worked(tmp_path, loss, severity):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * 3)
    log = log_of(val_loss=([1], [loss]))
    _, codes = run(validation_data, dataset, config_of(tmp_path, batch_size=4), log)
    assert codes == {"validation-data.fewer-than-a-batch": severity}


def test_no_batches(tmp_path):
    dataset = write_data(tmp_path, train=[ROW] * 8, valid=[ROW] * 8)
    _, codes = run(validation_data, dataset, config_of(tmp_path, val_batches=0))
    assert codes == {"validation-data.no-batches": "warning"}
    assert run(validation_data, dataset, config_of(tmp_path, val_batches=1))[1] == {}
