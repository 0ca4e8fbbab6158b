"""What a run is put together from, each part a plain function. Importing this loads no MLX."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlxdoctor.twin.batches import Batches
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRows

#: (model, tokens, spans) -> (mean, supervised), arrays of MLX; see `mlxdoctor.twin.masked_loss`.
LossFunction = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Parts:
    """What a run is put together from; an experiment replaces one of them.

    Attributes:
        load: gives the base model and its tokenizer.
        encode: gives the token rows of the data.
        prepare: freezes the model, and attaches the adapter.
        loss: what a batch is trained on.
        batches: gives the makers of the training and of the validation batches.
    """

    load: Callable[[Settings], tuple[Any, Any]]
    encode: Callable[[Settings, Any], TokenRows]
    prepare: Callable[[Any, Settings], None]
    loss: LossFunction
    batches: Callable[[Settings], Batches]
