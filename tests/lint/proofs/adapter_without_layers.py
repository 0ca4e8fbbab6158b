"""The tensors have no place in the model, and are refused; a model with the layers takes them."""

from pathlib import Path
from types import ModuleType

import mlx.core as mx
from mlx_lm.tuner.utils import linear_to_lora_layers

from tests.lint.tiny import LORA, TinyModel, raised

BAD, GOOD = "ValueError", ""


def observe(example: ModuleType) -> str:
    base, tuned = TinyModel(), TinyModel()
    linear_to_lora_layers(tuned, 2, LORA)
    factors = {
        f"layers.{number}.v_proj.{name}": layer.v_proj[name]
        for number, layer in enumerate(tuned.layers)
        for name in ("lora_a", "lora_b")
    }
    mx.save_safetensors("adapters.safetensors", factors)
    given = vars(example)
    # What mlx-lm's own load does with the folder of an adapter: layers first, then the weights.
    given["load"] = lambda path, adapter_path=None: (tuned if adapter_path else base, None)
    return raised(lambda: example.load_tuned("base", Path.cwd()))
