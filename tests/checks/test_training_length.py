"""Runs that ended before they had begun."""

from pathlib import Path

import pytest

from mlxdoctor.evidence.dataset import Dataset
from tests.checks.data_evidence import chat, config_of, write_data
from tests.checks.log_evidence import LogWriter, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

training_length = check_called("training-length")


def data(tmp_path: Path, count: int) -> Dataset:
    rows = [chat(f"What is number {i}?", f"It is {i}.") for i in range(count)]
    return write_data(tmp_path, train=rows)


@pytest.mark.parametrize(
    ("iterations", "rows", "hit"),
    [(5, 200, True), (12, 200, True), (13, 200, False), (31, 10_000, False), (5, 20, False)],
)
def test_iterations_against_rows(tmp_path: Path, iterations: int, rows: int, hit: bool) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", iters=iterations, batch_size=4)
    outcome = judge(training_length, config, data(tmp_path, rows))
    assert severities(outcome) == ({"few-rows-seen": "warning"} if hit else {})
    if hit:
        one = finding(outcome, "few-rows-seen")
        assert f"see {4 * iterations} of the {rows} rows in train.jsonl" in one.message
        assert f"{-(-rows // 4)} iterations are one pass" in one.fix


@pytest.mark.parametrize(
    ("iterations", "losses", "hit"),
    [
        (16, [], True),
        (17, [], False),
        # A loss that fell says that it learned.
        (4, [3.0, 2.75], True),
        (4, [3.0, 2.65], False),
        # A log that ends before the run tells nothing.
        (1000, [3.0, 2.9], None),
    ],
)
def test_where_the_rows_are_unknown(
    tmp_path: Path, logs: LogWriter, iterations: int, losses: list[float], hit: bool | None
) -> None:
    config = config_of(tmp_path, fine_tune_type="lora", iters=iterations, batch_size=4)
    log = [logs.losses(losses, every=2)] if losses else []
    outcome = judge(training_length, config, *log)
    assert bool(severities(outcome)) is bool(hit)
    assert (outcome.status == "inconclusive") is (hit is None)


@pytest.mark.parametrize(
    ("shape", "severity"),
    [
        ((4, 400, 2.5), "error"),
        ((12, 400, 0.7), "error"),
        # A loss that did not fall at all: that it ended at once is as certain.
        ((10, 400, 3.0), "error"),
        ((10, 90, 0.7), "error"),
        ((4, 200, 2.0), "error"),
        ((4, 20, 2.0), None),
        # More than half of the rows were seen, or nothing is left to learn, or it went on.
        ((10, 80, 0.7), None),
        ((10, 400, 0.05), "warning"),
        ((14, 400, 0.7), "warning"),
        ((24, 400, 0.7), "warning"),
        ((40, 400, 0.7), None),
    ],
)
def test_a_dozen_updates(
    tmp_path: Path, logs: LogWriter, shape: tuple[int, int, float], severity: str | None
) -> None:
    iterations, rows, last = shape
    config = config_of(tmp_path, fine_tune_type="lora", iters=iterations, batch_size=4)
    log = logs.losses([3.0, last], every=iterations // 2)
    outcome = judge(training_length, config, data(tmp_path, rows), log)
    assert severities(outcome) == ({} if severity is None else {"few-rows-seen": severity})
    # What was planned, but not logged, is no proof.
    planned = judge(training_length, config, data(tmp_path, rows))
    assert severities(planned).get("few-rows-seen") != "error"


def test_missing_evidence(tmp_path: Path, logs: LogWriter) -> None:
    resumed = config_of(tmp_path, iters=5, batch_size=4, resume_adapter_file="a.safetensors")
    assert judge(training_length, resumed).status.value == "skipped"
    long = config_of(tmp_path, iters=500, batch_size=4, resume_adapter_file="a.safetensors")
    assert judge(training_length, long).status.value == "passed"
