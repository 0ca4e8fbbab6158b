"""A loss that was computed already cannot be differentiated."""

from types import ModuleType

import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel, changed, raised, weights

BAD, GOOD = ("TypeError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    model = TinyModel()
    before = weights(model)
    error = raised(lambda: example.step(model, optim.SGD(0.1), TOKENS[:, :-1], TOKENS[:, 1:]))
    return error, bool(changed(model, before))
