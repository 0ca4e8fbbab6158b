"""A file whose names all miss loads without a word, and changes nothing."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TinyModel, changed, raised, weights

BAD, GOOD = ("", set()), ("ValueError", set())


def observe(example: ModuleType) -> tuple[str, set[str]]:
    model = TinyModel()
    mx.save_safetensors("w.safetensors", {f"base.{k}": v + 1 for k, v in weights(model).items()})
    before = weights(model)
    return raised(lambda: example.resume(model, "w.safetensors")), changed(model, before)
