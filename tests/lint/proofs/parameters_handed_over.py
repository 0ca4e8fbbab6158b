"""A loss that was written for a model fails on the dict."""

from types import ModuleType

import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel, raised

BAD, GOOD = "TypeError", ""


def observe(example: ModuleType) -> str:
    def loss(model, batch):
        return model(batch).mean()

    return raised(lambda: example.train(TinyModel(), optim.SGD(0.1), [TOKENS], loss))
