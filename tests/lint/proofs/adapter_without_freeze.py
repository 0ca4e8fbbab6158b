"""Without freeze everything stays trainable: what was not converted, and what LoRA layers wrap."""

from types import ModuleType

from tests.lint.tiny import LORA, names

BAD, GOOD = (True, True, True), (True, False, False)


def observe(example: ModuleType) -> tuple[bool, ...]:
    model, _ = example.prepare("base", LORA)
    trained = names(model.trainable_parameters())
    wrapped = "layers.0.q_proj.linear.weight"
    return "layers.0.q_proj.lora_b" in trained, "embed.weight" in trained, wrapped in trained
