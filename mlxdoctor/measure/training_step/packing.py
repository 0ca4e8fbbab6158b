"""Whether a document packed into a row sees the one before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlxdoctor.measure.training_step.alignment import Passes
from mlxdoctor.measure.training_step.calls import Calls
from mlxdoctor.measure.training_step.phases import Alignment

#: Logits that differ by less than this share of the largest one are the same.
SAME = 1e-3


def crosses_borders(
    loss: Callable[[Any], mx.array], model: Any, calls: Calls, passes: Passes, alignment: Alignment
) -> bool | None:
    """Whether logits of a row's second document change with the first one's tokens.

    The first document's tokens are put in another order in the model's own call, and nothing
    else is changed. None where no row has a second document.
    """
    packed = next((at for at, starts in enumerate(alignment.starts) if starts), None)
    if packed is None:
        return None
    number = int(alignment.forwards[packed])
    row = packed - int(np.flatnonzero(alignment.forwards == number)[0])
    tokens, logits = passes.inputs[number], passes.logits[number]
    start = alignment.starts[packed][0]
    if tokens is None:
        return None
    turned = np.array(tokens)
    # The end token stays where it is: an attention mask may be made from it.
    turned[row, : start - 1] = turned[row, : start - 1][::-1]
    calls.clear()
    calls.replaced = {number: mx.array(turned)}
    try:
        loss(model)
    finally:
        calls.replaced = {}
    if number >= len(calls.logits) or calls.logits[number].shape != logits.shape:
        return None
    before, after = (one[row, start:].astype(mx.float32) for one in (logits, calls.logits[number]))
    largest: Any = mx.abs(before).max().item()
    change: Any = mx.abs(after - before).max().item()
    return bool(change > SAME * largest)
