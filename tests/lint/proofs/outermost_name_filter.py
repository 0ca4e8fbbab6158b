"""The filter keeps nothing, and the update changes nothing."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx_lm.tuner.utils import linear_to_lora_layers

from tests.lint.tiny import LORA, TOKENS, TinyModel, changed, loss_fn, weights

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    """Whether a step changes anything."""
    model = TinyModel()
    model.freeze()
    linear_to_lora_layers(model, 2, LORA)
    before = weights(model)
    _, grads = nn.value_and_grad(model, loss_fn)(model, TOKENS[:, :-1], TOKENS[:, 1:])
    example.update(model, optim.SGD(0.1), grads)
    mx.eval(model.parameters())
    return bool(changed(model, before))
