"""The update is as many times PEFT's as the rank says."""

from types import ModuleType, SimpleNamespace

import mlx.core as mx
from mlx import nn
from mlx_lm.tuner.lora import LoRALinear

RANK, ALPHA = 4, 16
BAD, GOOD = 4.0, 1.0


def observe(example: ModuleType) -> float:
    """The size of the update, PEFT's being one."""
    parameters = example.parameters(SimpleNamespace(r=RANK, lora_alpha=ALPHA))
    linear = nn.Linear(8, 8, bias=False)
    layer = LoRALinear.from_base(linear, r=RANK, scale=parameters["scale"])
    layer.lora_b = mx.ones((RANK, 8))
    x = mx.ones((1, 8))
    update = layer(x) - linear(x)
    peft = ALPHA / RANK * (x @ layer.lora_a @ layer.lora_b)
    return round((update / peft).mean().item(), 3)
