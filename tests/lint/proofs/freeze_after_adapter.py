"""Nothing is trainable after the freeze."""

from types import ModuleType

from tests.lint.tiny import LORA, TinyModel, names

BAD, GOOD = 0, 8


def observe(example: ModuleType) -> int:
    model = TinyModel()
    example.prepare(model, LORA)
    return len(names(model.trainable_parameters()))
