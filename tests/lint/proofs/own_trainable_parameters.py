"""As a part of a larger model, all of it is trained; and freeze() is not heard."""

from types import ModuleType

from mlx import nn

from tests.lint.tiny import names

BAD, GOOD = (True, True), (False, False)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def observe(example: ModuleType) -> tuple[bool, bool]:
    """Whether the body is trained in a larger model, and the head after freeze()."""
    model = example.Model(nn.Linear(2, 2), nn.Linear(2, 2))
    trained = names(Outer(model).trainable_parameters())
    model.freeze()
    return "inner.body.weight" in trained, bool(names(model.trainable_parameters()))
