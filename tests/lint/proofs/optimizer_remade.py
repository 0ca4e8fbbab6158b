"""Steps by a gradient that turns about: each goes as far as a first one."""

from types import ModuleType

import mlx.core as mx
from mlx import nn

from tests.lint.tiny import TinyModel, weights

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether two steps with opposite gradients end where they began, as fresh Adams do."""
    model = TinyModel()
    before = weights(model)["head.weight"]

    def step(model: nn.Module, sign: float) -> tuple[mx.array, dict[str, dict[str, mx.array]]]:
        return mx.array(0.0), {"head": {"weight": sign * mx.ones((8, 8))}}

    example.train(model, step, [1.0, -1.0])
    return bool(mx.allclose(model.head.weight, before, atol=1e-6))
