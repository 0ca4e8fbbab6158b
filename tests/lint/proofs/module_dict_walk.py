"""Nothing is found in `vars` of a module."""

from types import ModuleType

from mlx import nn

from tests.lint.tiny import Layer

BAD, GOOD = 0, 2


class Wrapped(nn.Module):
    pass


def observe(example: ModuleType) -> int:
    """How many layers are converted."""
    made: list[nn.Module] = []
    example.wrap = lambda layer: made.append(layer) or Wrapped()
    example.convert(Layer())
    return len(made)
