"""Three epochs make as many steps as one."""

from types import ModuleType

import mlx.optimizers as optim
from mlx import nn

from tests.lint.tiny import TOKENS, TinyModel, loss_fn

BAD, GOOD = 1, 3


def observe(example: ModuleType) -> int:
    """How many steps are made in three epochs of one batch."""
    model, made = TinyModel(), []
    gradient = nn.value_and_grad(model, loss_fn)

    def step(model: nn.Module, rows: object) -> object:
        made.append(rows)
        return gradient(model, TOKENS[:, :-1], TOKENS[:, 1:])

    example.train(model, optim.SGD(0.1), step, [1, 2], 3)
    return len(made)
