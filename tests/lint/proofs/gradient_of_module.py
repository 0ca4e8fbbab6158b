"""Frozen weights get gradients, and an update changes them."""

from types import ModuleType

import mlx.optimizers as optim

from tests.lint.tiny import LORA, TOKENS, TinyModel, changed, weights

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether a step changes what is frozen."""
    model = TinyModel()
    example.prepare(model, LORA)
    before = weights(model)
    _, grads = example.step(model, TOKENS[:, :-1], TOKENS[:, 1:])
    optim.SGD(0.1).update(model, grads)
    return bool(changed(model, before) & {"embed.weight", "head.weight"})
