"""The mean loss over a split."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import mlx.core as mx

from mlxdoctor.train.batches import Batch
from mlxdoctor.train.losses import LossFunction
from mlxdoctor.train.step import scalar


def evaluate(model: Any, batches: Iterable[Batch], loss: LossFunction, world: int = 1) -> float:
    """The loss in nats a supervised token, over all processes; NaN where there is none.

    The model is left in evaluation mode: dropout is off.
    """
    model.eval()
    total, supervised = 0.0, 0.0
    for batch in batches:
        mean, count = loss(model, mx.array(batch.tokens), mx.array(batch.spans))
        mx.eval(mean, count)
        total += scalar(mean) * scalar(count)
        supervised += scalar(count)
    if world > 1:
        sums = mx.distributed.all_sum(mx.array([total, supervised]), stream=mx.cpu)
        total, supervised = scalar(sums[0]), scalar(sums[1])
    return total / supervised if supervised else math.nan
