"""The log's token count, made by mlx-lm's own batches and loss, against the rows."""

from __future__ import annotations

import types

import numpy as np
import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import BASE, DATA, FIXTURES, config_of, log_of, rows_of, run
from tests.conftest import check_called

trained_tokens = check_called("trained-tokens")


ITERATIONS = 230


@pytest.fixture(scope="module")
def counted():
    """How many tokens each iteration of a real mlx-lm run counts, by way of counting."""
    import mlx.core as mx
    from mlx_lm.tokenizer_utils import load
    from mlx_lm.tuner.datasets import CacheDataset, load_local_dataset
    from mlx_lm.tuner.trainer import default_loss, iterate_batches

    tokenizer = load(BASE)
    found = {}
    for mask in (False, True):
        arguments = types.SimpleNamespace(mask_prompt=mask)
        train, _, _ = load_local_dataset(DATA / "geography", tokenizer, arguments)
        counts, widths = [], []
        stream = iterate_batches(CacheDataset(train), 4, 2048, loop=True, seed=3)
        for _, (batch, lengths) in zip(range(ITERATIONS), stream, strict=False):
            _, tokens = default_loss(lambda inputs: mx.zeros((*inputs.shape, 8)), batch, lengths)
            counts.append(int(tokens.item()))
            longest = int(lengths[:, 1].max().item())
            widths.append(int((longest - lengths[:, 0]).sum().item()) if mask else 4 * longest - 4)
        found["masked" if mask else "whole"] = counts
        found["masked padding" if mask else "padding"] = widths
    return found


def log_from(counts, every=10, unit=1):
    total = np.cumsum(counts)
    at = np.arange(every, len(counts) + 1, every)
    kind = "named values" if unit == 1 else "table"
    return log_of(kind, trained_tokens=(at, np.round(total[at - 1] / unit) * unit))


def outcome_of(tmp_path, counts, mask, **options):
    config = config_of(tmp_path, mask_prompt=mask, batch_size=4, max_seq_length=2048)
    rows = rows_of(Dataset.read(DATA / "geography"), config)
    return run(trained_tokens, rows, config, log_from(counts, **options))


@pytest.mark.parametrize(
    ("counts", "mask", "expected"),
    [
        ("whole", False, {}),
        ("masked", True, {}),
        ("whole", True, {"trained-tokens.prompt-counted": "error"}),
        ("masked", False, {"trained-tokens.unexplained": "info"}),
        ("masked padding", True, {"trained-tokens.padding-counted": "error"}),
        ("padding", False, {"trained-tokens.padding-counted": "error"}),
    ],
)
@pytest.mark.parametrize("unit", [1, 100])
def test_each_way_of_counting_is_told_apart(tmp_path, counted, *, counts, mask, expected, unit):
    outcome, codes = outcome_of(tmp_path, counted[counts], mask, unit=unit)
    assert codes == expected
    assert outcome.status.value == ("found" if expected else "passed")


def test_a_sample_of_the_rows_is_enough(tmp_path, counted):
    config = config_of(tmp_path, mask_prompt=True, batch_size=4)
    rows = rows_of(Dataset.read(DATA / "geography"), config, limit=40)
    assert len(rows.batches) == 10
    _, codes = run(trained_tokens, rows, config, log_from(counted["masked"]))
    assert codes == {}
    _, codes = run(trained_tokens, rows, config, log_from(counted["whole"]))
    assert codes == {"trained-tokens.prompt-counted": "error"}


def test_coarse_rounding_leaves_it_open(tmp_path, counted):
    _, codes = outcome_of(tmp_path, counted["whole"][:20], True, unit=2000)
    assert codes == {}


def test_a_fixed_count_is_padding_or_packing(tmp_path):
    _, codes = outcome_of(tmp_path, [45 * 4] * 100, True)
    assert codes == {"trained-tokens.padding-counted": "error"}
    _, codes = outcome_of(tmp_path, [256 * 4] * 100, False)
    assert codes == {"trained-tokens.fixed-count": "warning"}


def test_a_count_of_other_data_is_unexplained(tmp_path, counted):
    _, codes = outcome_of(tmp_path, [3 * one + 1 for one in counted["whole"]], False)
    assert codes == {"trained-tokens.unexplained": "info"}


def test_reports_that_lost_their_window_are_left_out(tmp_path, counted):
    counts = list(counted["masked"])
    for at in range(41, 200, 50):
        counts[at - 1 : at + 8] = [0] * 9
    _, codes = outcome_of(tmp_path, counts, True)
    assert codes == {}


def test_at_batch_size_one_there_is_no_padding_to_confuse(tmp_path):
    dataset = Dataset.read(DATA / "geography")
    for mask in (True, False):
        config = config_of(tmp_path, mask_prompt=mask, batch_size=1)
        rows = rows_of(dataset, config)
        whole = [row.count(0) for row in rows.rows] * 2
        _, codes = run(trained_tokens, rows, config, log_from(whole))
        assert codes == ({"trained-tokens.prompt-counted": "error"} if mask else {})


@pytest.mark.parametrize("log", [log_of(train_loss=([1], [1.0])), log_of()])
def test_without_a_count_the_question_does_not_arise(tmp_path, log):
    config = config_of(tmp_path)
    rows = rows_of(Dataset.read(DATA / "geography"), config)
    assert run(trained_tokens, rows, config, log)[0].status.value == "skipped"
    assert run(trained_tokens, rows, config)[0].status.value == "skipped"


def test_one_report_or_a_falling_count_is_inconclusive(tmp_path, counted):
    config = config_of(tmp_path)
    rows = rows_of(Dataset.read(DATA / "geography"), config)
    for counts in ([(10, 900.0)], [(10, 900.0), (20, 100.0)]):
        log = log_of(trained_tokens=tuple(zip(*counts, strict=True)))
        assert run(trained_tokens, rows, config, log)[0].status.value == "inconclusive"


RUNS = FIXTURES / "runs"


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("targets-with-prompt", "prompt-counted"),
        ("targets-too-long", "one-short"),
        ("padding-supervised", "padding-counted"),
        ("missing-end-token", "fixed-count packed-without-end"),
        ("adapter-never-attached", "unexplained"),
        ("overfitting", None),
        ("healthy-ordinary", None),
        ("healthy-noisy-batch1", None),
        ("healthy-masked-warmup", None),
        ("healthy-short-low-rate", None),
    ],
)
def test_recorded_runs(name, symptoms):
    folder = RUNS / name
    logs = [path for path in (folder / "train.log", folder / "train.jsonl") if path.is_file()]
    if not logs:
        pytest.skip(f"the fixture run {name} is not there")
    config = TrainingConfig.read(folder)
    rows = rows_of(Dataset.read(FIXTURES / config.data), config)
    outcome, codes = run(trained_tokens, rows, config, TrainingLog.read(logs))
    assert list(codes) == [f"trained-tokens.{one}" for one in (symptoms or "").split()]
    assert outcome.status.value == ("found" if symptoms else "passed")


def test_reports_of_whole_epochs_are_no_fixed_count(tmp_path, counted):
    """200 rows in batches of 4 are 50 batches: every report of 50 counts the same tokens."""
    severity = outcome_of(tmp_path, counted["whole"], False, every=50)
    assert "trained-tokens.fixed-count" not in str(severity)
    assert "trained-tokens.padding-counted" not in str(severity)
