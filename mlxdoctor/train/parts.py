"""The exchangeable parts of a run, each a plain function.

An experiment replaces one and leaves the rest: `replace(parts_of(settings), loss=...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxdoctor.train.attach import load_base, prepare
from mlxdoctor.train.batches import Batches, exact_batches, parity_batches
from mlxdoctor.train.masked_loss import LossFunction, exact_loss, parity_loss
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRows, encode, encode_supervised


@dataclass(frozen=True)
class Parts:
    """What a run is put together from.

    Attributes:
        load: gives the base model and its tokenizer.
        encode: gives the token rows of the data.
        prepare: freezes the model, attaches the adapter, and verifies what is trainable.
        loss: what a batch is trained on; see `mlxdoctor.train.masked_loss`.
        batches: gives the makers of the training and of the validation batches.
    """

    load: Callable[[Settings], tuple[Any, Any]]
    encode: Callable[[Settings, Any], TokenRows]
    prepare: Callable[[Any, Settings], None]
    loss: LossFunction
    batches: Callable[[Settings], Batches]


def parts_of(settings: Settings) -> Parts:
    """The parts of the mode that the settings ask for."""
    if settings.is_exact:
        return Parts(load_base, encode_supervised, prepare, exact_loss, exact_batches)
    return Parts(load_base, encode, prepare, parity_loss, parity_batches)
