"""Optimizers of MLX have no `zero_grad`, arrays no `backward`."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

from tests.lint.tiny import TOKENS, TinyModel, changed, loss_fn, raised, weights

BAD, GOOD = ("AttributeError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    model, optimizer = TinyModel(), optim.SGD(0.1)
    assert not hasattr(mx.array(1.0), "backward")
    before = weights(model)
    loss = loss_fn if hasattr(example, "nn") else nn.losses.cross_entropy
    error = raised(lambda: example.step(model, optimizer, loss, TOKENS[:, :-1], TOKENS[:, 1:]))
    return error, bool(changed(model, before))
