"""Without a target the mean is NaN."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    """Whether the loss of a batch without a target is finite."""
    loss = example.masked_mean(mx.ones((2, 3)), mx.zeros((2, 3)))
    return bool(mx.isfinite(loss).item())
