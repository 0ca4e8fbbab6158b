"""The loss of a model on a split of the run's own rows, within the time that is left."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.train.settings import Settings


def split_loss(
    lab: Laboratory,
    settings: Settings,
    model: Any,
    tokenizer: Any,
    label: str,
    *,
    vocab_size: int | None = None,
) -> float | None:
    """Mean loss on the validation rows, nats a supervised token; None where there are none.

    Rows are masked as the settings say, and all of them count, whatever the batch size.

    Args:
        vocab_size: of the model: with a token beyond it the loss is infinite. None: the
            tokenizer is known to be the model's.

    Raises:
        BudgetSpent: the time was over before it was done.
    """
    from mlxdoctor.train.batches import exact_batches
    from mlxdoctor.train.masked_loss import evaluate, exact_loss
    from mlxdoctor.train.token_rows import encode_supervised

    exact = replace(settings, mode="exact")
    rows = encode_supervised(exact, tokenizer).valid
    if not rows:
        return None
    if vocab_size is not None and max(int(row.tokens.max()) for row in rows) >= vocab_size:
        # To look such a token up would read memory that is not the embedding's.
        return math.inf
    batches = lab.within_time(exact_batches(exact).evaluation(rows, -1), label)
    return evaluate(model, batches, exact_loss)
