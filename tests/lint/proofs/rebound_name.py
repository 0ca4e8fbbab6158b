"""The model is as it was."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TinyModel

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    """Whether the model has what was set."""
    model, value = TinyModel(), mx.ones((8, 8))
    example.set_parameter(model, "head.weight", value)
    return bool(mx.array_equal(model.head.weight, value).item())
