"""The forward pass of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxdoctor.measure.training_step.calls import Calls
from mlxdoctor.measure.training_step.phases import Forward
from mlxdoctor.measure.training_step.state import adapters_off
from mlxdoctor.measure.training_step.steps import Loss


def forward_pass(loss: Loss, model: nn.Module, calls: Calls) -> Forward:
    """The loss with and without the adapter; leaves `calls` filled by a pass of its own."""
    first = loss(model)
    value: Any = first.item()
    seen = calls.logits[0] if calls.logits else None
    number = len(calls.logits)
    finite: Any = all(mx.isfinite(one).all().item() for one in calls.logits)
    shape = tuple(seen.shape) if seen is not None else None
    dtype = str(seen.dtype).rpartition(".")[2] if seen is not None else None
    calls.clear()
    with adapters_off(model) as has_adapter:
        without: Any = loss(model).item() if has_adapter else None
    calls.clear()
    # The gradient of the logits needs a pass whose calls are known.
    loss(model)
    return Forward(
        loss=float(value),
        without_adapter=without,
        uniform=math.log(shape[-1]) if shape is not None else None,
        dtype=dtype,
        shape=shape,
        finite_logits=bool(finite),
        calls=number,
    )


@contextmanager
def uncompiled() -> Iterator[None]:
    """A compiled loss would keep the zeros of its first call as constants."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()
