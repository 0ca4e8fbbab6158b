"""Writing a portable adapter as PEFT would."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mlxdoctor.convert.portable import (
    OUTPUT_HEAD,
    PEFT_PREFIX,
    PortableAdapter,
    PortableModule,
    grid,
    is_tied,
)
from mlxdoctor.convert.raw import RawTensor, safetensors_bytes
from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel


def to_peft(
    adapter: PortableAdapter, base: BaseModel | None
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The files of a PEFT adapter folder, and notes on what had to change for them.

    Args:
        adapter: of one rank and one scale, as mlx-lm has them.
        base: the base model, if it is at hand.
    """
    modules, notes = _with_own_head(adapter.modules, base)
    rank, scale = modules[0].rank, modules[0].scale
    targets, layers = _targets(modules, base)
    config: dict[str, Any] = {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": adapter.model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": layers,
        "lora_alpha": alpha_for(scale, rank),
        "lora_dropout": adapter.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": adapter.is_dora,
        "use_rslora": False,
    }
    files = {
        "adapter_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        "adapter_model.safetensors": safetensors_bytes(_tensors(modules), {"format": "pt"}),
    }
    return files, notes


def alpha_for(scale: float, rank: int) -> int | float:
    """The lora_alpha that PEFT divides by `rank` to get `scale`.

    In double precision the quotient can be one unit in the last place away (0.1, rank 3);
    in single precision, in which both libraries multiply, it was the same for 64 million
    scales next to where it rounds. A whole number is an integer, as PEFT declares it.
    """
    alpha = scale * rank
    return int(alpha) if alpha.is_integer() else alpha


def _with_own_head(
    modules: tuple[PortableModule, ...], base: BaseModel | None
) -> tuple[tuple[PortableModule, ...], tuple[str, ...]]:
    """With factors of its own for an output head that mlx-lm gives the embedding's."""
    embedding = next((one for one in modules if one.is_embedding), None)
    if embedding is None or base is None or not is_tied(base):
        return modules, ()
    head = PortableModule(
        name=OUTPUT_HEAD,
        a=embedding.b.transposed,
        b=embedding.a.transposed,
        magnitude=None,
        scale=embedding.scale,
        is_embedding=False,
    )
    note = f"{OUTPUT_HEAD} gets the factors of {embedding.name}, which mlx-lm applies to both"
    return (*modules, head), (note,)


def _tensors(modules: Iterable[PortableModule]) -> dict[str, RawTensor]:
    tensors: dict[str, RawTensor] = {}
    for one in modules:
        # PEFT holds an embedding's factors as bare parameters, without the ".weight".
        kind, end = ("lora_embedding", "") if one.is_embedding else ("lora", ".weight")
        tensors[f"{PEFT_PREFIX}{one.name}.{kind}_A{end}"] = one.a.transposed
        tensors[f"{PEFT_PREFIX}{one.name}.{kind}_B{end}"] = one.b.transposed
        if one.magnitude is not None:
            tensors[f"{PEFT_PREFIX}{one.name}.lora_magnitude_vector"] = one.magnitude
    return tensors


def _targets(
    modules: tuple[PortableModule, ...], base: BaseModel | None
) -> tuple[list[str], list[int] | None]:
    """`target_modules` and `layers_to_transform`: short names where those say the same."""
    names = [one.name for one in modules]
    cells = grid(modules)
    if cells is None:
        return names, None
    layers, projections = cells
    outside = [one.name for one in modules if one.layer is None]
    is_whole = base is not None and layers == list(range(base.num_layers or 0))
    short = sorted({one.rsplit(".", 1)[-1] for one in projections})
    if outside and not is_whole:
        return names, None
    if base is not None and not _means_only(short + outside, layers, set(names), base):
        return names, None
    return short + outside, None if is_whole else layers


def _means_only(targets: list[str], layers: list[int], names: set[str], base: BaseModel) -> bool:
    meant = {
        module
        for module in base.linear_shapes
        if any(module == one or module.endswith(f".{one}") for one in targets)
        and layer_of(module)[0] in (*layers, None)
    }
    return meant <= names
