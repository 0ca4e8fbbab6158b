"""The step fails: an array is no tree of gradients."""

from types import ModuleType

import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel, loss_fn, raised

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    def loss(model: TinyModel, tokens: object) -> object:
        return loss_fn(model, TOKENS[:, :-1], TOKENS[:, 1:])

    return bool(raised(lambda: example.step(TinyModel(), optim.SGD(0.1), loss, TOKENS)))
