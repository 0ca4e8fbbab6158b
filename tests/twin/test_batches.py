"""Batches: every row once, as narrow as can be; and in parity those of mlx-lm."""

from itertools import islice

import numpy as np
import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin import Settings
from mlxdoctor.twin.batches import collate, exact_batches, exact_order, padded_width, parity_batches
from mlxdoctor.twin.token_rows import TokenRow, TokenRows, only_supervised
from tests.twin.small import Rowset, row

LENGTHS = (5, 70, 12, 33, 31, 6, 64, 65, 90, 8, 40)
ROWS = tuple(row(length, seed) for seed, length in enumerate(LENGTHS))


def settings(size: int, limit: int, seed: int) -> Settings:
    return Settings(batch_size=size, max_seq_length=limit, seed=seed)


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 33), (32, 33), (33, 65), (64, 65), (65, 80), (200, 80)]
)
def test_a_batch_is_one_wider_than_a_multiple_of_32_up_to_the_limit(
    longest: int, width: int
) -> None:
    assert padded_width(longest, limit=80) == width


def test_a_row_is_copied_cut_and_padded_with_zeros() -> None:
    batch = collate(ROWS, [0, 1], limit=40)
    assert batch.tokens.shape == (2, 40)
    assert batch.tokens[0, :5].tolist() == ROWS[0].tokens.tolist()
    assert not batch.tokens[0, 5:].any()
    assert batch.tokens[1].tolist() == ROWS[1].tokens[:40].tolist()
    assert batch.spans.tolist() == [[0, 5], [1, 40]]


def test_every_row_is_seen_once_a_pass_and_passes_differ() -> None:
    train, _ = exact_batches(settings(4, 96, 3))
    batches = [batch.indices for batch in islice(train(ROWS), 6)]
    first, second = batches[:3], batches[3:]
    for one in (first, second):
        assert sorted(index for indices in one for index in indices) == list(range(len(ROWS)))
    assert set(map(frozenset, first)) != set(map(frozenset, second))


def test_no_other_order_has_less_padding() -> None:
    def padding(batches: list[list[int]]) -> int:
        return sum(
            len(one) * padded_width(max(LENGTHS[index] for index in one), 96) for one in batches
        )

    by_length = sorted(range(len(ROWS)), key=lambda index: LENGTHS[index])
    best = [by_length[start : start + 4] for start in range(0, len(ROWS), 4)]
    for seed in range(5):
        assert padding(exact_order(ROWS, 4, 96, (seed, 0))) == padding(best)


def test_a_validation_is_the_same_every_time() -> None:
    _, evaluation = exact_batches(settings(4, 96, 3))
    assert [one.indices for one in evaluation(ROWS, 2)] == [
        one.indices for one in evaluation(ROWS, 2)
    ]
    assert len(list(evaluation(ROWS, 2))) == 2
    assert len(list(evaluation(ROWS, -1))) == 3
    assert not list(evaluation(ROWS, 0))


def test_rows_without_a_target_are_left_out() -> None:
    # Targets are positions from the offset on: a row of 5 with offset 4 has one.
    rows = TokenRows((row(5, 4), row(5, 5), row(1), row(30, 20)), (), ())
    assert [len(one.tokens) for one in only_supervised(rows, 32).train] == [5, 30]
    assert only_supervised(rows, 32).left_out == 2
    assert [len(one.tokens) for one in only_supervised(rows, 20).train] == [5]
    with pytest.raises(InputError, match="none of the 1 training rows has a token to learn"):
        only_supervised(TokenRows((row(5, 5),), (), ()), 32)


@pytest.mark.slow
def test_parity_gives_the_batches_of_mlx_lm_validations_in_between() -> None:
    from mlx_lm.tuner.datasets import CacheDataset
    from mlx_lm.tuner.trainer import iterate_batches

    keyed = tuple(
        TokenRow(one.tokens, one.offset, 1 if index % 3 else 2) for index, one in enumerate(ROWS)
    )
    data = CacheDataset(Rowset(keyed))
    np.random.seed(5)
    theirs = iterate_batches(data, 4, 64, loop=True)
    train, evaluation = parity_batches(settings(4, 64, 5))
    ours = train(keyed)
    for step in range(7):
        wanted, spans = next(theirs)
        batch = next(ours)
        assert batch.tokens.tolist() == wanted.tolist()
        assert batch.spans.tolist() == spans.tolist()
        if step % 3 == 0:
            checked = islice(iterate_batches(data, 4, 64), 1)
            for (wanted, _), batch in zip(checked, evaluation(keyed, 1), strict=True):
                assert batch.tokens.tolist() == wanted.tolist()


def test_parity_refuses_what_mlx_lm_refuses() -> None:
    train, evaluation = parity_batches(settings(16, 64, 0))
    with pytest.raises(InputError, match="less than a batch of 16"):
        next(train(ROWS))
    with pytest.raises(InputError, match="11 validation rows"):
        next(evaluation(ROWS, 1))
