"""An empty batch at the boundary takes its update with it."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

from tests.lint.tiny import TOKENS, TinyModel, loss_fn

BAD, GOOD = 1, 2


def observe(example: ModuleType) -> int:
    """How many updates four batches with rows give, by two each, with an empty one among them."""
    model, optimizer = TinyModel(), optim.SGD(0.1)
    gradient = nn.value_and_grad(model, loss_fn)
    empty = mx.zeros((0, 6), mx.int32)
    batches = [TOKENS, empty, TOKENS, TOKENS, TOKENS]

    def step(model: nn.Module, one: mx.array) -> object:
        return gradient(model, one[:, :-1], one[:, 1:])

    example.train(model, optimizer, step, batches, 2)
    return int(optimizer.step.item())
