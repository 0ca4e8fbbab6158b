"""After a flag is set alone, the model has no LoRA weights."""

from types import ModuleType, SimpleNamespace

from tests.lint.tiny import LORA, TinyModel, names

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    config = SimpleNamespace(num_layers=2, lora_parameters=LORA)
    model = example.add_adapter(TinyModel(), config)
    return any("lora" in name for name in names(model.trainable_parameters()))
