"""The update is as many times PEFT's as the rank says."""

from types import ModuleType, SimpleNamespace

import mlx.core as mx
from mlx import nn

from tests.lint.tiny import TinyModel

RANK, ALPHA = 4, 16
BAD, GOOD = 4.0, 1.0


def observe(example: ModuleType) -> float:
    """The size of the update, PEFT's being one."""
    model = TinyModel()
    example.convert(model, SimpleNamespace(r=RANK, lora_alpha=ALPHA))
    layer = model.layers[0].q_proj
    layer.lora_b = mx.ones((RANK, 8))
    x = mx.ones((1, 8))
    assert isinstance(layer.linear, nn.Linear)
    update = layer(x) - layer.linear(x)
    peft = ALPHA / RANK * (x @ layer.lora_a @ layer.lora_b)
    return round((update / peft).mean().item(), 3)
