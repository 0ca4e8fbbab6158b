"""The first step fails: the model has no such method."""

from types import ModuleType

from tests.lint.tiny import TOKENS, TinyModel, raised

BAD, GOOD = "AttributeError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.step(TinyModel(), TOKENS[:, :-1], TOKENS[:, 1:]))
