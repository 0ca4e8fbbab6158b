"""The gradient is exactly zero."""

from types import ModuleType

from mlx.utils import tree_flatten

from tests.lint.tiny import TOKENS, TinyModel

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    """Whether any gradient differs from zero."""
    _, grads = example.step(TinyModel(), TOKENS)
    return any(value.any().item() for _, value in tree_flatten(grads))
