"""A dict has no `forward`."""

from types import ModuleType

from tests.lint.tiny import TOKENS, TinyModel, raised

BAD, GOOD = "AttributeError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.step(TinyModel(), TOKENS))
