"""Which modules of a base model a configuration puts LoRA on, and how many numbers that is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig

#: Parts of names of modules that hold no language-model linear layer: other towers,
#: and convolutions, whose weights are matrices too.
_NOT_LINEAR = re.compile(r"vision|visual|audio|conv|rotary")


def matches(key: str, name: str, config: TrainingConfig) -> bool:
    """Whether a target key of the configuration means the module `name`.

    mlx-lm compares the whole name, or the whole name within the layer; PEFT compares
    the end of the name.
    """
    if config.origin == "peft":
        return name == key or name.endswith(f".{key}")
    layer, projection = layer_of(name)
    return key == name or (layer is not None and key == projection)


def target_modules(config: TrainingConfig, base: BaseModel) -> tuple[str, ...] | None:
    """The base model's modules that `config` puts LoRA on, or None where it cannot be told.

    Without keys mlx-lm takes every linear layer and embedding inside the last
    `num_layers` layers; keys that are whole names count outside those layers too.
    """
    names = [name for name in base.linear_shapes if not _NOT_LINEAR.search(name)]
    if config.origin == "peft":
        return _peft_targets(config, names)
    layers, count = base.num_layers, config.num_layers
    if layers is None or count is None:
        return None
    first = layers - count if count > 0 else 0
    keys = config.keys
    inside = [name for name in names if (layer_of(name)[0] or 0) >= first]
    if keys is None:
        return tuple(name for name in inside if layer_of(name)[0] is not None)
    return tuple(
        name for name in names if name in keys or (name in inside and layer_of(name)[1] in keys)
    )


def _peft_targets(config: TrainingConfig, names: Iterable[str]) -> tuple[str, ...] | None:
    stated = config.values.get("target_modules")
    if config.values.get("layers_to_transform") is not None or config.keys is None:
        return None
    if stated == "all-linear":
        return tuple(n for n in names if layer_of(n)[0] is not None)
    if isinstance(stated, str):
        # A pattern from a stranger's file could take exponential time.
        return None
    return tuple(name for name in names if any(matches(key, name, config) for key in config.keys))


def lora_parameters(modules: Iterable[str], rank: int, base: BaseModel) -> int:
    """Numbers in LoRA factors of `rank` on those modules: r·(in + out), for every expert."""
    total = 0
    for name in modules:
        shape = base.shape(name)
        experts = shape[0] if len(shape) == 3 else 1
        total += experts * rank * (shape[-1] + shape[-2])
    return total
