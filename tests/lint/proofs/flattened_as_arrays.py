"""A pair has no `square`."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import raised

BAD, GOOD = "AttributeError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.norm({"a": mx.ones(3), "b": mx.ones(2)}))
