"""The log's token count, made by mlx-lm's batches and loss, against the rows. Runs: test_runs."""

import numpy as np
import pytest

from mlxdoctor.evidence.dataset import Dataset
from tests.checks.data_evidence import (
    DATA,
    chat,
    config_of,
    log_of,
    mlx_lm_batches,
    rows_of,
    run,
    write_data,
)
from tests.conftest import check_called

trained_tokens = check_called("trained-tokens")
GEOGRAPHY = Dataset.read(DATA / "geography")
ITERATIONS = 230


@pytest.fixture(scope="module")
def counted():
    """How many tokens each iteration of a real mlx-lm run counts, by way of counting."""
    import mlx.core as mx
    from mlx_lm.tuner.trainer import default_loss

    found = {}
    for mask in (False, True):
        counts, widths = [], []
        stream = mlx_lm_batches(DATA / "geography", mask, 4, 2048, loop=True, seed=3)
        for _, (batch, lengths) in zip(range(ITERATIONS), stream, strict=False):
            _, tokens = default_loss(lambda inputs: mx.zeros((*inputs.shape, 8)), batch, lengths)
            counts.append(int(tokens.item()))
            longest = int(lengths[:, 1].max().item())
            widths.append(int((longest - lengths[:, 0]).sum().item()) if mask else 4 * longest - 4)
        found["masked" if mask else "whole"] = counts
        found["masked padding" if mask else "padding"] = widths
    return found


def tell(tmp_path, counts, mask, *, batch_size=4, limit=None, every=10, unit=1):
    """The one symptom that is found, or None."""
    config = config_of(tmp_path, mask_prompt=mask, batch_size=batch_size, max_seq_length=2048)
    rows = rows_of(GEOGRAPHY, config, limit=limit)
    at = np.arange(every, len(counts) + 1, every)
    totals = np.round(np.cumsum(counts)[at - 1] / unit) * unit
    log = log_of("named values" if unit == 1 else "table", trained_tokens=(at, totals))
    outcome, codes = run(trained_tokens, rows, config, log)
    assert len(codes) <= 1
    assert outcome.status.value in (("found",) if codes else ("passed", "inconclusive"))
    return next(iter(codes), None)


@pytest.mark.parametrize("unit", [1, 100])
@pytest.mark.parametrize(
    ("counts", "mask", "symptom"),
    [
        ("whole", False, None),
        ("masked", True, None),
        ("whole", True, "prompt-counted"),
        ("masked", False, "unexplained"),
        ("masked padding", True, "padding-counted"),
        ("padding", False, "padding-counted"),
    ],
)
def test_each_way_of_counting_is_told_apart(tmp_path, counted, *, counts, mask, symptom, unit):
    assert tell(tmp_path, counted[counts], mask, unit=unit) == symptom


def test_answers_of_one_length_are_counted_the_same_in_every_batch(tmp_path):
    train = [chat(f"{'Well, ' * (i % 7)}which is it?", "abcd"[i % 4]) for i in range(64)]
    config = config_of(tmp_path, mask_prompt=True, batch_size=4, max_seq_length=2048)
    rows = rows_of(write_data(tmp_path, train=train), config)
    at = np.arange(10, 310, 10)
    # As mlx-lm counted before 0.28.4, with the tokens that open an answer.
    each = rows.rows[0].count() + 3
    log = log_of("named values", trained_tokens=(at, 4.0 * each * at))
    assert set(run(trained_tokens, rows, config, log)[1]) <= {"unexplained"}


def test_counts_that_none_of_the_usual_ways_gives(tmp_path, counted):
    assert tell(tmp_path, [45 * 4] * 100, True) == "padding-counted"
    assert tell(tmp_path, [256 * 4] * 100, False) == "unexplained"
    assert tell(tmp_path, [3 * count + 1 for count in counted["whole"]], False) == "unexplained"
    # Coarse rounding leaves it open, and reports that lost their window are left out.
    assert tell(tmp_path, counted["whole"][:20], True, unit=2000) is None
    counts = list(counted["masked"])
    for first in range(40, 199, 50):
        counts[first : first + 9] = [0] * 9
    assert tell(tmp_path, counts, True) is None
    # 200 rows in batches of 4 are 50 batches: every report of 50 counts the same tokens.
    assert tell(tmp_path, counted["whole"], False, every=50) is None


@pytest.mark.parametrize(
    ("counts", "mask", "symptom"),
    [("masked", True, None), ("whole", True, "prompt-counted")],
)
def test_a_sample_of_the_rows_is_enough(tmp_path, counted, counts, mask, symptom):
    assert tell(tmp_path, counted[counts], mask, limit=40) == symptom


@pytest.mark.parametrize(("mask", "symptom"), [(True, "prompt-counted"), (False, None)])
def test_at_batch_size_one_there_is_no_padding_to_confuse(tmp_path, mask, symptom):
    whole = [row.count(0) for row in rows_of(GEOGRAPHY, config_of(tmp_path)).rows] * 2
    assert tell(tmp_path, whole, mask, batch_size=1) == symptom


@pytest.mark.parametrize(
    ("log", "status"),
    [
        (None, "skipped"),
        (log_of(), "skipped"),
        (log_of(train_loss=([1], [1.0])), "skipped"),
        # One report, and a falling count.
        (log_of(trained_tokens=([10], [900.0])), "inconclusive"),
        (log_of(trained_tokens=([10, 20], [900.0, 100.0])), "inconclusive"),
    ],
)
def test_without_a_count_the_question_does_not_arise(tmp_path, log, status):
    config = config_of(tmp_path)
    evidence = [rows_of(GEOGRAPHY, config), config, *([log] if log else [])]
    assert run(trained_tokens, *evidence)[0].status.value == status
