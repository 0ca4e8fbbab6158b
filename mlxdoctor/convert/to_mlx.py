"""Writing a portable adapter as mlx-lm would."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from mlxdoctor.convert.portable import (
    OUTPUT_HEAD,
    PortableAdapter,
    PortableModule,
    grid,
    is_tied,
)
from mlxdoctor.convert.raw import RawTensor, safetensors_bytes
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.safety.errors import InputError


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
    tensors: dict[str, RawTensor] = {}
    for one in modules:
        tensors[f"{one.name}.lora_a"] = one.a
        tensors[f"{one.name}.lora_b"] = one.b
        if one.magnitude is not None:
            tensors[f"{one.name}.m"] = one.magnitude
    num_layers, keys = _targets(modules, base)
    config = {
        "fine_tune_type": "dora" if adapter.is_dora else "lora",
        "lora_parameters": {
            "dropout": adapter.dropout,
            "keys": keys,
            "rank": modules[0].rank,
            "scale": scale,
        },
        "model": adapter.model,
        "num_layers": num_layers,
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
        "adapters.safetensors": safetensors_bytes(tensors, {"format": "mlx"}),
    }
    return files, tuple(notes)


def _with_one_head(adapter: PortableAdapter, base: BaseModel | None) -> tuple[PortableModule, ...]:
    """Without the output head's factors where mlx-lm applies the embedding's to it as well."""
    embeddings = [one for one in adapter.modules if one.is_embedding]
    heads = [one for one in adapter.modules if one.name == OUTPUT_HEAD]
    if base is None or not is_tied(base) or not (embeddings or heads):
        return adapter.modules
    if len(embeddings) == len(heads) == 1:
        (embedding,), (head,) = embeddings, heads
        if (
            head.a.is_same(embedding.b.transposed)
            and head.b.is_same(embedding.a.transposed)
            and head.scale == embedding.scale
        ):
            return tuple(one for one in adapter.modules if one is not head)
    raise InputError(
        adapter.path,
        "the base model's embedding is its output head too, and mlx-lm adapts both with the same "
        "factors, PEFT each with its own",
        "only an adapter whose factors are the same for both can be converted",
    )


def _with_one_rank(modules: tuple[PortableModule, ...]) -> tuple[tuple[PortableModule, ...], int]:
    rank = max(one.rank for one in modules)
    filled = tuple(
        one if one.rank == rank else replace(one, a=one.a.padded(1, rank), b=one.b.padded(0, rank))
        for one in modules
    )
    return filled, sum(one.rank != rank for one in modules)


def _with_one_scale(
    adapter: PortableAdapter, modules: tuple[PortableModule, ...]
) -> tuple[float, tuple[PortableModule, ...], int]:
    ((scale, _),) = Counter(one.scale for one in modules).most_common(1)
    changed = tuple(one if one.scale == scale else _folded(one, scale, adapter) for one in modules)
    return scale, changed, sum(one.scale != scale for one in modules)


def _folded(module: PortableModule, scale: float, adapter: PortableAdapter) -> PortableModule:
    ratio = module.scale / scale if scale else 0.0
    if (b := module.b.times(ratio)) is not None:
        return replace(module, b=b, scale=scale)
    if (a := module.a.times(ratio)) is not None:
        return replace(module, a=a, scale=scale)
    raise InputError(
        adapter.path,
        f"{module.name} has the scale {module.scale:g}, other modules {scale:g}, and mlx-lm has "
        "one scale for all",
        f"their ratio cannot be multiplied into {module.b.dtype} factors without rounding",
    )


def _targets(modules: tuple[PortableModule, ...], base: BaseModel | None) -> tuple[int, list[str]]:
    """`num_layers`, and the keys: names within the layer where those say the same.

    A whole name is looked up in the whole model, whatever `num_layers` is.
    """
    cells = grid(modules)
    total = base.num_layers if base is not None else None
    if cells is not None and total is not None:
        layers, projections = cells
        if layers == list(range(total - len(layers), total)):
            outside = [one.name for one in modules if one.layer is None]
            return len(layers), projections + sorted(outside)
    layers_touched = {one.layer for one in modules if one.layer is not None}
    return max(len(layers_touched), 1), [one.name for one in modules]
