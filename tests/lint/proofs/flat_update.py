"""Weights of a file do not reach the model."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TinyModel, changed, raised, weights

BAD, GOOD = ("ValueError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    model = TinyModel()
    before = weights(model)
    mx.save_safetensors("w.safetensors", {name: value + 1 for name, value in before.items()})
    error = raised(lambda: example.resume(model, "w.safetensors"))
    return error, bool(changed(model, before))
