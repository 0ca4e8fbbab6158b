"""The gradient is zero."""

from types import ModuleType

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.lint.tiny import TOKENS, TinyModel

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    _, grads = example.step(TinyModel(), TOKENS, mx.array([1.0, -1.0]))
    return all(mx.abs(one).max().item() < 1e-5 for _, one in tree_flatten(grads))
