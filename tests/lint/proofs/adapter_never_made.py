"""What is saved as an adapter are full weights."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import TOKENS, loss_fn

BAD, GOOD = (False, True), (True, False)


def observe(example: ModuleType) -> tuple[bool, bool]:
    """Whether the file has LoRA factors, and whether it has weights of the base model."""
    example.main(loss_fn, [(TOKENS[:, :-1], TOKENS[:, 1:])])
    saved = mx.load("adapters.safetensors")
    return any("lora_b" in name for name in saved), "head.weight" in saved
