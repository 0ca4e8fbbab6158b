"""However sure the model, the loss stays near that of a guess."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TOKENS

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether a model that is right and sure of it has a loss above 1."""
    loss = example.loss_fn(lambda tokens: 50.0 * mx.eye(8)[tokens], TOKENS, TOKENS)
    return loss.item() > 1.0
