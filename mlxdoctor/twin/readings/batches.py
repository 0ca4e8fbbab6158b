"""Which rows a batch has."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat

from mlxdoctor.twin.batches import Batch, Batches, collate
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.reading import reading
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRow


@reading(in_training=True, fix="Take the next batch in every iteration, not the first again.")
def one_batch(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of one and the same batch in every iteration."""

    def batches(settings: Settings) -> Batches:
        made = parts.batches(settings)
        return Batches(lambda rows: repeat(next(made.train(rows))), made.evaluation)

    return settings, replace(parts, batches=batches)


@reading(in_training=True, sound=True)
def rows_in_file_order(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of the rows in the order of the file."""
    size, limit = settings.batch_size, settings.max_seq_length

    def train(rows: Sequence[TokenRow]) -> Iterator[Batch]:
        for start in count(0, size):
            yield collate(rows, [(start + place) % len(rows) for place in range(size)], limit)

    def batches(settings: Settings) -> Batches:
        return Batches(train, parts.batches(settings).evaluation)

    return settings, replace(parts, batches=batches)
