"""The loss: what of a batch is supervised, the mean over it, and over a whole split.

A loss is a plain function `(model, tokens, spans) -> (mean, supervised)` with the
signature of mlx-lm's `default_loss`, which is that of the parity mode:
`tokens` int32 (rows, width); `spans` int32 (rows, 2), the first supervised position
and the length of each row; `mean` float32 (), nats a token; `supervised` int32 ().
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.parts import LossFunction


def exact_mask(spans: mx.array, width: int) -> mx.array:
    """Which targets are supervised: those of the row's own tokens from its first position.

    Args:
        spans: int32 (rows, 2), first supervised position and length.
        width: columns of the batch.

    Returns:
        bool (rows, width - 1); column j stands for the target at position j + 1.
    """
    positions = mx.arange(1, width)
    return (positions >= spans[:, :1]) & (positions < spans[:, 1:])


def token_losses(model: Any, tokens: mx.array) -> mx.array:
    """The loss of predicting each token from those before it: (rows, width - 1), nats."""
    losses: mx.array = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    return losses


def mean_over(losses: mx.array, mask: mx.array) -> tuple[mx.array, mx.array]:
    """Mean of the losses where the mask is true, 0 where it nowhere is; how many they are."""
    supervised = mask.sum()
    # A select rather than a product: infinity times zero would be NaN.
    total = mx.where(mask, losses.astype(mx.float32), 0.0).sum()
    return total / mx.maximum(supervised, 1), supervised


def exact_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """Mean over the supervised tokens; 0 where there are none."""
    return mean_over(token_losses(model, tokens), exact_mask(spans, tokens.shape[1]))


def losses_of(
    model: Any,
    batches: Iterable[Batch],
    loss: LossFunction,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[list[float], list[float]]:
    """Of each batch the summed loss in nats and the supervised tokens, dropout off.

    Args:
        is_late: asked after each batch whether to stop.
    """
    model.eval()
    sums, counts = [], []
    for batch in batches:
        mean, count = loss(model, mx.array(batch.tokens), mx.array(batch.spans))
        mx.eval(mean, count)
        counts.append(scalar(count))
        # Without a token the mean is 0/0, and adds nothing.
        sums.append(scalar(mean) * counts[-1] if counts[-1] else 0.0)
        if is_late():
            break
    return sums, counts


def evaluate(model: Any, batches: Iterable[Batch], loss: LossFunction) -> float:
    """The loss in nats a supervised token; NaN where there is none.

    The model is left in evaluation mode: dropout is off.
    """
    sums, counts = losses_of(model, batches, loss)
    return sum(sums) / sum(counts) if sum(counts) else math.nan


def scalar(array: mx.array) -> float:
    """The number in a scalar array, evaluated."""
    value: Any = array.item()
    return float(value)
