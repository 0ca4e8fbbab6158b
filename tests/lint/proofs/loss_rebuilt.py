"""All gradients are zero."""

from types import ModuleType

from mlx.utils import tree_flatten

from tests.lint.tiny import TOKENS, TinyModel

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    _, grads = example.step(TinyModel(), TOKENS[:, :-1], TOKENS[:, 1:])
    return all(abs(one).max().item() < 1e-5 for _, one in tree_flatten(grads))
