"""`value_and_grad` refuses a loss that is no scalar."""

from types import ModuleType

from tests.lint.tiny import TOKENS, TinyModel, raised

BAD, GOOD = "ValueError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: example.step(TinyModel(), TOKENS[:, :-1], TOKENS[:, 1:]))
