"""Rows into batches: which rows, in which order, how wide."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRow

#: Batches are as wide as a multiple of this, plus one, as mlx-lm's are (tuner/trainer.py,
#: iterate_batches), so that few shapes are compiled.
WIDTH_STEP = 32


@dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
        tokens: int32 (rows, width), padded with 0.
        spans: int32 (rows, 2): first supervised position, and length after the cut.
        indices: the places of its rows in the split.
    """

    tokens: NDArray[np.int32]
    spans: NDArray[np.int32]
    indices: tuple[int, ...]


class Batches(NamedTuple):
    """How a run makes its batches.

    Attributes:
        train: rows -> batches without end.
        evaluation: (rows, how many or -1) -> the batches of one validation.
    """

    train: Callable[[Sequence[TokenRow]], Iterator[Batch]]
    evaluation: Callable[[Sequence[TokenRow], int], Iterator[Batch]]

    def map(self, change: Callable[[Batch], Batch]) -> "Batches":
        """The same with every batch changed."""
        return Batches(
            lambda rows: map(change, self.train(rows)),
            lambda rows, count: map(change, self.evaluation(rows, count)),
        )


def padded_width(longest: int, limit: int) -> int:
    """Columns for a batch whose longest row has `longest` tokens; at most `limit`."""
    return min(1 + WIDTH_STEP * -(-longest // WIDTH_STEP), limit)


def collate(rows: Sequence[TokenRow], indices: Sequence[int], limit: int) -> Batch:
    """The batch of the rows at `indices`, cut to `limit` tokens."""
    width = padded_width(max(len(rows[index].tokens) for index in indices), limit)
    tokens = np.zeros((len(indices), width), np.int32)
    spans = np.ones((len(indices), 2), np.int32)
    for place, index in enumerate(indices):
        row = rows[index]
        length = min(len(row.tokens), width)
        tokens[place, :length] = row.tokens[:length]
        spans[place] = row.offset, length
    return Batch(tokens, spans, tuple(indices))


def doubled(batch: Batch, limit: int) -> Batch:
    """The batch as wide as one of a few widths, each twice the one before, and at most `limit`.

    Every width is compiled anew, which takes the processor half a second for 30 layers: on a GPU
    longer than the padding.
    """
    width = WIDTH_STEP
    while width < batch.tokens.shape[1] - 1:
        width *= 2
    added = max(min(width + 1, limit) - batch.tokens.shape[1], 0)
    return replace(batch, tokens=np.pad(batch.tokens, ((0, 0), (0, added))))


def exact_order(
    rows: Sequence[TokenRow], batch_size: int, limit: int, seed: Sequence[int]
) -> list[list[int]]:
    """One pass over all rows in batches of rows of like length, in random order.

    Rows of one width are mixed at random; the last batch of the longest rows may be smaller.
    """
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(rows))
    widths = np.array([padded_width(len(rows[index].tokens), limit) for index in shuffled])
    ordered = shuffled[np.argsort(widths, kind="stable")]
    parts = [ordered[start : start + batch_size] for start in range(0, len(ordered), batch_size)]
    return [parts[index].tolist() for index in generator.permutation(len(parts))]


def exact_batches(settings: Settings) -> Batches:
    """Batches of like lengths: every row once a pass, the same batches for every validation."""
    size, limit, seed = settings.batch_size, settings.max_seq_length, settings.seed

    def one_pass(rows: Sequence[TokenRow], epoch: int) -> Iterator[Batch]:
        for indices in exact_order(rows, size, limit, (seed, epoch)):
            yield collate(rows, indices, limit)

    def train(rows: Sequence[TokenRow]) -> Iterator[Batch]:
        for epoch in count():
            yield from one_pass(rows, epoch)

    def evaluation(rows: Sequence[TokenRow], batches: int) -> Iterator[Batch]:
        return islice(one_pass(rows, 0), None if batches == -1 else batches)

    return Batches(train, evaluation)


def parity_batches(settings: Settings) -> Batches:
    """mlx-lm's batches: sorted by number of keys, the remainder dropped, one random stream.

    Training and validation draw from the same generator, in the order in which they ask.

    Raises:
        InputError: on the first batch, if there are fewer rows than a batch has.
    """
    size, limit = settings.batch_size, settings.max_seq_length
    generator = np.random.RandomState(settings.seed)

    def one_pass(rows: Sequence[TokenRow], what: str) -> Iterator[Batch]:
        if len(rows) < size:
            raise InputError(None, f"{len(rows)} {what} rows are less than a batch of {size}")
        order = sorted(range(len(rows)), key=lambda index: rows[index].keys)
        starts = range(0, len(order) - size + 1, size)
        for number in generator.permutation(len(starts)):
            yield collate(rows, order[starts[number] : starts[number] + size], limit)

    def train(rows: Sequence[TokenRow]) -> Iterator[Batch]:
        while True:
            yield from one_pass(rows, "training")

    def evaluation(rows: Sequence[TokenRow], batches: int) -> Iterator[Batch]:
        # mlx-lm draws the order of all batches even where it looks at a few.
        return islice(one_pass(rows, "validation"), None if batches == -1 else batches)

    return Batches(train, evaluation)
