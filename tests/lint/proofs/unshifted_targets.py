"""A model that repeats its input has the lowest loss."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TOKENS

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether a model that gives each token back is thought to be good."""
    loss = example.loss_fn(lambda tokens: 20.0 * mx.eye(8)[tokens], TOKENS)
    return loss.item() < 0.1
