"""Which modules a configuration puts LoRA on, how many numbers that is, and what mlx-lm refuses.

What mlx-lm refuses follows its `load_adapters` (0.32.2, `tuner/utils.py`); nothing is loaded.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod
from typing import Any

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES, Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import NEEDS
from mlxdoctor.safety.quoting import cut

#: Parts of names of modules that hold no language-model linear layer: other towers,
#: and convolutions, whose weights are matrices too.
_NOT_LINEAR = re.compile(r"vision|visual|audio|conv|rotary")
#: What `mlx_lm.lora` writes of its arguments since October 2025; since that September it
#: takes every linear layer where no keys are stated (mlx-lm pull requests 511 and 515).
_TAKES_ALL = frozenset({"adapter_path", "grad_accumulation_steps", "test_batches", "train"})
#: The number of a layer, or of a block, in a module's name.
_NUMBER = re.compile(r"\.\d+\.")
#: Characters of a value that are shown.
_SHOWN = 40


def by_mlx_lm(config: TrainingConfig | None) -> bool:
    """Whether `mlx_lm.lora` itself wrote a configuration: its arguments, every one of them."""
    return config is not None and config.origin == "mlx-lm" and config.values.keys() >= _TAKES_ALL


def matches(key: str, name: str, config: TrainingConfig) -> bool:
    """Whether a target key of the configuration means the module `name`."""
    # mlx-lm compares the whole name, or that within the layer; PEFT the end of the name.
    if config.origin == "peft":
        return name == key or name.endswith(f".{key}")
    layer, projection = layer_of(name)
    return key == name or (layer is not None and key == projection)


def unmatched_keys(config: TrainingConfig, names: Collection[str]) -> list[str]:
    """The target keys of the configuration that mean none of these modules."""
    keys = config.keys or ()
    return [key for key in keys if not any(matches(key, name, config) for name in names)]


def target_modules(config: TrainingConfig, base: BaseModel) -> tuple[str, ...] | None:
    """The base model's modules that `config` puts LoRA on, or None where it cannot be told."""
    names = [name for name in base.linear_shapes if not _NOT_LINEAR.search(name)]
    if config.origin == "peft":
        return peft_targets(config, names)
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


def peft_targets(config: TrainingConfig, names: Iterable[str]) -> tuple[str, ...] | None:
    """Those of the names that PEFT puts LoRA on; None where they are not listed."""
    stated, keys = config.values.get("target_modules"), config.keys
    if keys is None or (isinstance(stated, str) and stated != "all-linear"):
        # A pattern from a stranger's file could take exponential time.
        return None
    chosen = config.values.get("layers_to_transform")
    layers = chosen if isinstance(chosen, list) or chosen is None else [chosen]
    targets = []
    for name in names:
        layer = layer_of(name)[0]
        is_meant = layer is not None and stated == "all-linear"
        is_named = is_meant or any(matches(key, name, config) for key in keys)
        if name in keys or (is_named and (not layers or layer in layers)):
            targets.append(name)
    return tuple(targets)


def configured_parameters(config: TrainingConfig, base: BaseModel) -> int | None:
    """Trainable numbers of the adapter that `config` describes; None where it cannot be told."""
    targets, rank = target_modules(config, base), config.rank
    if not targets or not rank:
        return None
    total = 0
    for name in targets:
        *experts, outputs, inputs = base.shape(name)
        # DoRA has a magnitude for every row of the weight.
        total += prod(experts) * rank * (inputs + outputs)
        total += outputs if config.fine_tune_type == "dora" else 0
    return total


def refused_settings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings at which mlx-lm stops in an adapter_config.json: the key, and a clause why."""
    if "num_layers" not in values and type(values.get("lora_layers")) is int:
        yield "lora_layers", "has lora_layers, as old releases wrote it, and no num_layers"
        values = {**values, "num_layers": values["lora_layers"]}
    lora = values.get("lora_parameters")
    tables = [("num_layers", values)]
    if isinstance(lora, Mapping):
        keys = ("rank", "scale", "dropout", "keys")
        tables += [(f"lora_parameters.{key}", lora) for key in keys]
    else:
        tables.append(("lora_parameters", values))
    for place, table in tables:
        key = place.rpartition(".")[2]
        value, need = table.get(key), NEEDS[place]
        # mlx-lm loads an adapter without keys, and one whose scale is no finite number.
        if need.holds(value) or (key, value) == ("keys", None):
            continue
        if key not in table:
            yield place, f"has no {key}, where {need.text} is needed"
        elif key != "scale" or not isinstance(value, float):
            shown = cut(json.dumps(value, default=str), _SHOWN)
            yield place, f"says {shown} for {key}, where {need.text} is needed"


def refused_tensors(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None
) -> Iterator[tuple[list[str], str]]:
    """Tensors that mlx-lm has no place for beside this adapter_config.json, and a clause why."""
    if config.fine_tune_type == "full":
        yield list(adapter.tensors), "the configuration says a full fine-tune"
        return
    if unread := [tensor.name for tensor in adapter.tensors.values() if tensor.dtype == "F64"]:
        yield unread, "they are stored as 64-bit numbers, which MLX does not read"
        return
    is_dora = config.values.get("fine_tune_type") == "dora"
    layers = {module.layer for module in adapter.modules if module.layer is not None}
    count, keys, rank = config.num_layers or 0, config.keys, config.rank
    # Of an unknown model its last layer may be the last that is there.
    total = base.num_layers if base is not None else None
    first = (total or max(layers) + 1) - count if layers and count > 0 else 0
    modules = [(module.name, module) for module in adapter.modules]
    others = [tensor.name for tensor in adapter.others]
    reasons = {
        f"the configuration says rank {rank}, and they have another": [
            name for name, module in modules if module.rank != rank
        ],
        "they are no adapter's parameters": [
            name for name in others if name.rpartition(".")[2] not in ADAPTER_LEAVES
        ],
        "fine_tune_type is not dora, so that nothing is scaled": [
            name for name in adapter.tensors if name.endswith(".m") and not is_dora
        ],
        "fine_tune_type is dora, which it has not for experts": [
            name for name, module in modules if is_dora and module.experts is not None
        ],
        f"num_layers is {count}, and earlier layers are not converted": [
            name
            for name, module in modules
            # A whole name is looked up in the whole model.
            if module.layer is not None and module.layer < first and name not in (keys or ())
        ],
        "without keys only modules of layers are converted": [
            name for name, _ in modules if keys is None and not _NUMBER.search(name)
        ],
        "keys does not name them": [
            name
            for name, _ in modules
            if keys is not None and not any(matches(key, name, config) for key in keys)
        ],
    }
    yield from ((names, reason) for reason, names in reasons.items() if names)
