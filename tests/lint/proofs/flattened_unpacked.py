"""The second pair's name has no `size`."""

from types import ModuleType

from tests.lint.tiny import TinyModel, raised

BAD, GOOD = "AttributeError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.count(TinyModel()))
