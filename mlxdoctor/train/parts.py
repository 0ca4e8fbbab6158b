"""The exchangeable parts of a run, each a plain function.

An experiment replaces one and leaves the rest: `replace(exact_parts(...), loss=...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxdoctor.train import batches, losses, model, optimizers, rows
from mlxdoctor.train.batches import EvaluationBatches, TrainBatches, Worker
from mlxdoctor.train.losses import LossFunction
from mlxdoctor.train.rows import Rows
from mlxdoctor.train.settings import Settings


@dataclass(frozen=True)
class Parts:
    """What a run is put together from.

    Attributes:
        load: gives the base model and its tokenizer.
        encode: gives the token rows of the data.
        prepare: freezes the model, attaches the adapter, and verifies what is trainable.
        build_optimizer: gives the optimizer, not initialised.
        loss: what a batch is trained on; see `mlxdoctor.train.losses`.
        train_batches: gives training batches without end.
        evaluation_batches: gives the batches of one validation.
    """

    load: Callable[[Settings], tuple[Any, Any]]
    encode: Callable[[Settings, Any], Rows]
    prepare: Callable[[Any, Settings], None]
    build_optimizer: Callable[[Settings], Any]
    loss: LossFunction
    train_batches: TrainBatches
    evaluation_batches: EvaluationBatches


def parts_of(settings: Settings, worker: Worker | None = None) -> Parts:
    """The parts of the mode that the settings ask for.

    Args:
        worker: this process's share of each batch; the whole by default.
    """
    worker = worker or Worker()
    limit = settings.max_seq_length
    is_exact = settings.extras.is_exact

    def encode_supervised(settings: Settings, tokenizer: Any) -> Rows:
        return rows.only_supervised(rows.encode(settings, tokenizer), limit)

    make = batches.exact_batches if is_exact else batches.parity_batches
    train_batches, evaluation_batches = make(settings.batch_size, limit, settings.seed, worker)
    return Parts(
        load=model.load_base,
        encode=encode_supervised if is_exact else rows.encode,
        prepare=model.prepare,
        build_optimizer=optimizers.build_optimizer,
        loss=losses.exact_loss if is_exact else losses.parity_loss,
        train_batches=train_batches,
        evaluation_batches=evaluation_batches,
    )
