"""The name is not there."""

from types import ModuleType

from tests.lint.tiny import TOKENS, TinyModel, raised

BAD, GOOD = "AttributeError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.loss_fn(TinyModel(), TOKENS, TOKENS))
