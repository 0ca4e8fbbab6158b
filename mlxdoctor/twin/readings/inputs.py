"""Which rows a batch has, what the model is given of them, and what is made of its logits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import Any

from mlxdoctor.twin.batches import Batch, Batches, collate
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import losses, reading
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


@reading(fix="Give the model its causal mask.")
def no_causal_mask(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of a model without its causal mask, which sees the tokens that it is to predict."""
    return settings, _of_logits(parts, losses().without_causal_mask)


@reading(fix="Keep inputs and targets of a row together: shuffle both or neither.")
def targets_of_another_row(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of inputs with the targets of another row of the batch."""
    if settings.batch_size < 2:
        return None
    return settings, replace(parts, loss=losses().loss_of_neighbours(parts.loss))


def _of_logits(parts: Parts, call: Any) -> Parts:
    return replace(parts, loss=losses().loss_through(parts.loss, call))


def _four_times(model: Any, inputs: Any) -> Any:
    return model(inputs) * 4.0


@reading(fix="Give the loss the logits as the model computes them.")
def logits_times_four(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of logits that are multiplied by 4."""
    return settings, _of_logits(parts, _four_times)


@reading(fix="Give the loss logits: it takes their logarithm itself.")
def probabilities_as_logits(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
    """Of probabilities where logits belong."""
    return settings, _of_logits(parts, losses().probabilities)
