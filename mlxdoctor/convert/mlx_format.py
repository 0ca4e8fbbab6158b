"""Reading an mlx-lm adapter into what both formats can say, and writing one as mlx-lm would."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from safetensors.numpy import save

from mlxdoctor.convert.portable import (
    OUTPUT_HEAD,
    PortableAdapter,
    PortableModule,
    Stored,
    is_same,
    is_tied,
    stored_values,
    times,
)
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.safety.errors import InputError

_UNLOADABLE = "mlx-lm itself would refuse this adapter"


def from_mlx(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> PortableAdapter:
    """The adapter as mlx-lm would apply it.

    Args:
        adapter: with mlx-lm's names.
        config: its adapter_config.json.
        base: its base model, if it is at hand.

    Raises:
        InputError: PEFT has nothing like it, or mlx-lm would not load it.
    """
    is_dora = config.fine_tune_type == "dora"
    if config.fine_tune_type not in ("lora", "dora"):
        raise InputError(
            config.path,
            f"describes a fine-tune of type {config.fine_tune_type}, which has no LoRA factors",
            "save the whole model instead",
        )
    stated = config.values.get("lora_parameters")
    if not isinstance(stated, Mapping) or config.scale is None or config.rank is None:
        raise InputError(
            config.path,
            "does not state both lora_parameters.rank and lora_parameters.scale",
            "without the scale the factors mean nothing",
        )
    if others := adapter.others:
        raise InputError(
            adapter.path,
            f"{others[0].name} and {len(others) - 1} other tensors are no LoRA factors"
            if len(others) > 1
            else f"{others[0].name} is no LoRA factor",
            "mlx-lm itself would refuse it in an adapter",
        )
    for module in adapter.modules:
        _require_loadable(module, adapter, config, base)
    modules = tuple(
        PortableModule(
            name=module.name,
            a=stored_values(module.a),
            b=stored_values(module.b),
            magnitude=stored_values(module.magnitude) if module.magnitude else None,
            scale=config.scale,
            is_embedding=is_embedding(module.name),
        )
        for module in adapter.modules
    )
    left_behind = (
        "the settings of the training (rate, data, iterations) stay behind: PEFT's file has "
        "no place for them"
    )
    return PortableAdapter(
        path=adapter.path,
        modules=modules,
        dropout=config.dropout or 0.0,
        model=config.model,
        is_dora=is_dora,
        notes=(left_behind,) if config.describes_training else (),
    )


def _require_loadable(
    module: LoraModule, adapter: Adapter, config: TrainingConfig, base: BaseModel | None
) -> None:
    path, is_dora = adapter.path, config.fine_tune_type == "dora"
    if module.experts is not None:
        raise InputError(
            path,
            f"{module.name} has factors for each of {module.experts} experts, stacked",
            "PEFT puts LoRA on single linear layers and has no such module",
        )
    if module.rank != config.rank:
        raise InputError(
            path,
            f"{module.name} has rank {module.rank}, but {config.path.name} says {config.rank}",
            _UNLOADABLE,
        )
    if (module.magnitude is not None) != is_dora:
        has = "no DoRA magnitude" if is_dora else "a DoRA magnitude"
        raise InputError(
            path,
            f"{module.name} has {has}, but {config.path.name} says {config.fine_tune_type}",
            "correct fine_tune_type, or save the adapter again",
        )
    if is_dora and is_embedding(module.name):
        raise InputError(
            path,
            f"{module.name} is an embedding with DoRA, whose magnitudes are one a row here and "
            "one a column in PEFT",
            "train it with LoRA",
        )
    if not _is_attached(module, config, base):
        raise InputError(
            path,
            f"{module.name} is not among the modules that {config.path.name} names",
            _UNLOADABLE,
        )


def _is_attached(module: LoraModule, config: TrainingConfig, base: BaseModel | None) -> bool:
    keys = config.keys
    if keys is not None and module.name in keys:
        return True
    if module.layer is None:
        return False
    if keys is not None and not any(matches(key, module.name, config) for key in keys):
        return False
    count = config.num_layers
    if base is None or base.num_layers is None or count is None or count <= 0:
        return True
    return module.layer >= base.num_layers - count


def to_mlx(
    adapter: PortableAdapter, base: BaseModel | None
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of an mlx-lm adapter folder, and notes on what had to change for them.

    mlx-lm has one rank and one scale: lower ranks are filled up with zeros, which change
    no product; other scales are multiplied into a factor where that is exact.

    Raises:
        InputError: several scales that no factor can take up exactly, or a weight shared
            by embedding and output head of which only one is adapted.
    """
    modules = _with_one_head(adapter, base)
    modules, filled = _with_one_rank(modules)
    scale, modules, folded = _with_one_scale(adapter, modules)
    tensors: dict[str, Stored] = {}
    for module in modules:
        tensors[f"{module.name}.lora_a"] = np.ascontiguousarray(module.a)
        tensors[f"{module.name}.lora_b"] = np.ascontiguousarray(module.b)
        if module.magnitude is not None:
            tensors[f"{module.name}.m"] = module.magnitude
    layers = {module.layer for module in modules} - {None}
    config = {
        "fine_tune_type": "dora" if adapter.is_dora else "lora",
        "lora_parameters": {
            "dropout": adapter.dropout,
            # Whole names are looked up in the whole model, whatever `num_layers` is.
            "keys": [module.name for module in modules],
            "rank": modules[0].rank,
            "scale": scale,
        },
        "model": adapter.model,
        "num_layers": max(len(layers), 1),
    }
    notes = []
    if filled:
        notes.append(
            f"{filled} modules of lower rank are filled up with zeros to rank {modules[0].rank}, "
            "the one rank that mlx-lm has"
        )
    if folded:
        notes.append(
            f"the scale of {folded} modules is multiplied into a factor, exactly, because "
            "mlx-lm has one scale"
        )
    files = {
        "adapter_config.json": (json.dumps(config, indent=4) + "\n").encode(),
        "adapters.safetensors": save(tensors, {"format": "mlx"}),
    }
    return files, tuple(notes)


def _with_one_head(adapter: PortableAdapter, base: BaseModel | None) -> tuple[PortableModule, ...]:
    """Without the output head's factors where mlx-lm applies the embedding's to it as well."""
    embeddings = [module for module in adapter.modules if module.is_embedding]
    heads = [module for module in adapter.modules if module.name == OUTPUT_HEAD]
    if base is None or not is_tied(base) or not (embeddings or heads):
        return adapter.modules
    if len(embeddings) == len(heads) == 1:
        (embedding,), (head,) = embeddings, heads
        if (
            is_same(head.a, embedding.b.T)
            and is_same(head.b, embedding.a.T)
            and head.scale == embedding.scale
        ):
            return tuple(module for module in adapter.modules if module is not head)
    raise InputError(
        adapter.path,
        "the base model's embedding is its output head too, and mlx-lm adapts both with the same "
        "factors, PEFT each with its own",
        "only an adapter whose factors are the same for both can be converted",
    )


def _with_one_rank(modules: tuple[PortableModule, ...]) -> tuple[tuple[PortableModule, ...], int]:
    rank = max(module.rank for module in modules)
    filled = tuple(
        replace(
            module,
            a=np.pad(module.a, [(0, 0), (0, rank - module.rank)]),
            b=np.pad(module.b, [(0, rank - module.rank), (0, 0)]),
        )
        for module in modules
    )
    return filled, sum(module.rank != rank for module in modules)


def _with_one_scale(
    adapter: PortableAdapter, modules: tuple[PortableModule, ...]
) -> tuple[float, tuple[PortableModule, ...], int]:
    ((scale, _),) = Counter(module.scale for module in modules).most_common(1)
    changed = tuple(
        module if module.scale == scale else _folded(module, scale, adapter) for module in modules
    )
    return scale, changed, sum(module.scale != scale for module in modules)


def _folded(module: PortableModule, scale: float, adapter: PortableAdapter) -> PortableModule:
    ratio = module.scale / scale if scale else 0.0
    if (b := times(module.b, ratio)) is not None:
        return replace(module, b=b, scale=scale)
    if (a := times(module.a, ratio)) is not None:
        return replace(module, a=a, scale=scale)
    raise InputError(
        adapter.path,
        f"{module.name} has the scale {module.scale:g}, other modules {scale:g}, and mlx-lm has "
        "one scale for all",
        f"their ratio cannot be multiplied into {module.b.dtype} factors without rounding",
    )
