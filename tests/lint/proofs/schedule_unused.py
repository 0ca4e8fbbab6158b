"""The rate after all steps is the one at the start."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    optimizer = example.make_optimizer(0.1, 10)
    weights = {"w": mx.ones(2)}
    for _ in range(12):
        weights = optimizer.apply_gradients({"w": mx.ones(2)}, weights)
    return optimizer.learning_rate.item() > 0.09
