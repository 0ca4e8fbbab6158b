"""Rows into batches: which rows, in which order, how wide.

`exact_batches` and `parity_batches` give the two makers of a run, that of training and
that of validation. Every process of a distributed run makes its share of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow

#: Batches are as wide as a multiple of this, plus one, so that few shapes are compiled.
WIDTH_STEP = 32


@dataclass(frozen=True)
class Worker:
    """Which share of each batch a process takes: rows `rank`, `rank + size`, ..."""

    rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Batch:
    """One process's share of a batch.

    Attributes:
        tokens: int32 (rows, width), padded with 0.
        spans: int32 (rows, 2): first supervised position, and length after the cut.
        indices: the rows of the whole batch, over all processes.
    """

    tokens: NDArray[np.int32]
    spans: NDArray[np.int32]
    indices: tuple[int, ...]


class Batches(NamedTuple):
    """How a run makes its batches.

    Attributes:
        train: (rows, first iteration) -> batches without end.
        evaluation: (rows, how many or -1) -> the batches of one validation.
    """

    train: Callable[[Sequence[TokenRow], int], Iterator[Batch]]
    evaluation: Callable[[Sequence[TokenRow], int], Iterator[Batch]]


def padded_width(longest: int, limit: int) -> int:
    """Columns for a batch whose longest row has `longest` tokens; at most `limit`."""
    return min(1 + WIDTH_STEP * -(-longest // WIDTH_STEP), limit)


def collate(
    rows: Sequence[TokenRow], indices: Sequence[int], height: int, limit: int, worker: Worker
) -> Batch:
    """This worker's share of the batch `indices`, cut to `limit` tokens.

    Args:
        height: rows of the share; those that are not there are empty and unsupervised.
    """
    own = indices[worker.rank :: worker.size]
    width = padded_width(max((len(rows[index].tokens) for index in own), default=1), limit)
    tokens = np.zeros((height, width), np.int32)
    spans = np.ones((height, 2), np.int32)
    for place, index in enumerate(own):
        row = rows[index]
        length = min(len(row.tokens), width)
        tokens[place, :length] = row.tokens[:length]
        spans[place] = row.offset, length
    return Batch(tokens, spans, tuple(indices))


def exact_order(
    rows: Sequence[TokenRow], batch_size: int, limit: int, seed: Sequence[int]
) -> list[list[int]]:
    """One pass over all rows in batches of rows of like length, in random order.

    Rows that are padded to the same width are mixed at random, so that the batches of
    two passes differ; the last batch of the longest rows may be smaller.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(rows))
    widths = np.array([padded_width(len(rows[index].tokens), limit) for index in shuffled])
    ordered = shuffled[np.argsort(widths, kind="stable")]
    parts = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [parts[index].tolist() for index in generator.permutation(len(parts))]


def exact_batches(settings: Settings, worker: Worker) -> Batches:
    """Batches of like lengths: every row once a pass, the same batches for every validation."""
    size, limit, seed = settings.batch_size, settings.max_seq_length, settings.seed
    height = -(-size // worker.size)

    def train(rows: Sequence[TokenRow], start: int) -> Iterator[Batch]:
        first, done = divmod(start - 1, -(-len(rows) // size))
        for epoch in count(first):
            order = exact_order(rows, size, limit, (seed, epoch))
            for indices in order[done:]:
                yield collate(rows, indices, height, limit, worker)
            done = 0

    def evaluation(rows: Sequence[TokenRow], batches: int) -> Iterator[Batch]:
        order = exact_order(rows, size, limit, (seed, 0))
        for indices in order if batches == -1 else order[:batches]:
            yield collate(rows, indices, height, limit, worker)

    return Batches(train, evaluation)


def parity_batches(settings: Settings, worker: Worker) -> Batches:
    """mlx-lm's batches: sorted by number of keys, the remainder dropped, one random stream.

    Training and validation draw from the same generator, in the order in which they ask.

    Raises:
        InputError: mlx-lm makes no such batches; where rows are too few, on the first one.
    """
    size, limit = settings.batch_size, settings.max_seq_length
    if size % worker.size:
        problem = f"batch_size {size} is not divisible by {worker.size} processes"
        raise InputError(None, problem, "mlx-lm needs that")
    generator = np.random.RandomState(settings.seed)

    def one_pass(rows: Sequence[TokenRow], what: str) -> Iterator[Batch]:
        if len(rows) < size:
            raise InputError(None, f"{len(rows)} {what} rows are less than a batch of {size}")
        order = sorted(range(len(rows)), key=lambda index: rows[index].keys)
        starts = range(0, len(order) - size + 1, size)
        for number in generator.permutation(len(starts)):
            indices = order[starts[number] : starts[number] + size]
            yield collate(rows, indices, size // worker.size, limit, worker)

    def train(rows: Sequence[TokenRow], start: int) -> Iterator[Batch]:
        if start != 1:
            problem = "mlx-lm cannot continue a run at a step"
            raise InputError(None, problem, "resume without --parity")
        while True:
            yield from one_pass(rows, "training")

    def evaluation(rows: Sequence[TokenRow], batches: int) -> Iterator[Batch]:
        # mlx-lm draws the order of all batches even where it looks at a few.
        yield from islice(one_pass(rows, "validation"), None if batches == -1 else batches)

    return Batches(train, evaluation)
