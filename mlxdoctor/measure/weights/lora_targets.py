"""Which modules of a base model a configuration puts LoRA on, and how many numbers that is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig

#: Parts of names of modules that hold no language-model linear layer: other towers,
#: and convolutions, whose weights are matrices too.
_NOT_LINEAR = re.compile(r"vision|visual|audio|conv|rotary")
#: What `mlx_lm.lora` writes of its arguments since October 2025; since that September it
#: takes every linear layer where no keys are stated (mlx-lm pull requests 511 and 515).
_TAKES_ALL = frozenset({"adapter_path", "grad_accumulation_steps", "test_batches", "train"})
#: What is a linear layer in every architecture; other matrices may be bare parameters.
_LINEAR = "_proj"


def by_mlx_lm(config: TrainingConfig | None) -> bool:
    """Whether `mlx_lm.lora` itself wrote a configuration: its arguments, every one of them."""
    return config is not None and config.origin == "mlx-lm" and config.values.keys() >= _TAKES_ALL


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


@dataclass(frozen=True)
class MissingTargets:
    """Modules that a configuration puts LoRA on and that an adapter has no factors for.

    Attributes:
        names: those modules, sorted.
        expected: how many modules there should be.
        is_certain: they were trained, and lost: the configuration is one that `mlx_lm.lora`
            itself wrote of a base that MLX wrote, or a module has factors in one adapted
            layer and none in another, which no trainer chooses.
    """

    names: tuple[str, ...]
    expected: int
    is_certain: bool


def missing_targets(
    adapter: Adapter, config: TrainingConfig, base: BaseModel
) -> MissingTargets | None:
    """What `adapter` lacks of what `config` describes, or None where that cannot be told."""
    targets = target_modules(config, base)
    if targets is None:
        return None
    kinds = {module.projection for module in adapter.modules}
    layers = {module.layer for module in adapter.modules}
    is_written = by_mlx_lm(config)
    if config.keys is None:
        # Without keys the trainer chose: hold it to the kinds of module that it did take.
        targets = tuple(
            name
            for name in targets
            if layer_of(name)[1] in kinds or (is_written and name.endswith(_LINEAR))
        )
    missing = sorted(set(targets) - {module.name for module in adapter.modules})
    scattered = any(layer in layers and kind in kinds for layer, kind in map(layer_of, missing))
    return MissingTargets(
        names=tuple(missing),
        expected=len(targets),
        is_certain=config.origin == "mlx-lm" and base.is_mlx and (is_written or scattered),
    )


def configured_parameters(config: TrainingConfig, base: BaseModel) -> int | None:
    """Trainable numbers of the adapter that `config` describes; None where it cannot be told.

    r·(in + out) for every module, or for every expert of one; DoRA adds a magnitude for
    every row of the weight.
    """
    targets, rank = target_modules(config, base), config.rank
    if not targets or not rank:
        return None
    total = 0
    for name in targets:
        shape = base.shape(name)
        experts = shape[0] if len(shape) == 3 else 1
        total += experts * rank * (shape[-1] + shape[-2])
        total += shape[-2] if config.fine_tune_type == "dora" else 0
    return total
