"""Reading a PEFT adapter into what both formats can say, and writing one as PEFT would."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save

from mlxdoctor.convert.portable import (
    EMBEDDING,
    OUTPUT_HEAD,
    PEFT_PREFIX,
    PortableAdapter,
    PortableModule,
    Stored,
    is_same,
    is_tied,
    stored_values,
)
from mlxdoctor.evidence.adapter import Adapter, LoraModule, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.measure.weights.adapter_facts import module_scale
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.safety.errors import InputError

#: Settings that change what the adapter computes, and why mlx-lm cannot follow.
_REFUSED: Mapping[str, str] = {
    "alora_invocation_tokens": "an adapter that wakes up at certain tokens",
    "arrow_config": "routing between several adapters",
    "kasa_config": "singular values besides the factors",
    "layer_replication": "layers that are used twice",
    "lora_bias": "a bias in the factor B",
    "megatron_config": "factors split over several machines",
    "modules_to_save": "whole modules beside the factors",
    "monteclora_config": "random factors",
    "target_parameters": "LoRA on bare parameters",
    "trainable_token_indices": "single rows of the embedding",
    "use_bdlora": "block-diagonal factors",
    "use_qalora": "inputs averaged in groups",
}
#: Settings that are read elsewhere, or say nothing about what the adapter computes.
_HARMLESS = frozenset(
    [
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "merge_weights",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_dora",
        "use_rslora",
        "velora_config",
    ]
)
# The other ways to start (pissa, olora, corda, loftq, …) change the base model's weights.
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_PLAIN_NAME = re.compile(r"[\w.-]+")


def from_peft(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> PortableAdapter:
    """The adapter as PEFT would apply it.

    Args:
        adapter: with PEFT's names.
        config: its adapter_config.json.
        base: its base model, if it is at hand.

    Raises:
        InputError: mlx-lm has nothing like it, or PEFT would not apply all of it.
    """
    _require_plain(config)
    is_dora = config.fine_tune_type == "dora"
    notes = tuple(_copied(tensor, base) for tensor in adapter.others)
    for module in adapter.modules:
        _require_applied(module, config, is_dora)
    modules = tuple(
        PortableModule(
            name=module.name,
            a=stored_values(module.a).T,
            b=stored_values(module.b).T,
            magnitude=stored_values(module.magnitude) if module.magnitude else None,
            scale=module_scale(module, config),
            is_embedding="lora_embedding_A" in module.a.name,
        )
        for module in adapter.modules
    )
    return PortableAdapter(
        path=adapter.path,
        modules=modules,
        dropout=config.dropout or 0.0,
        model=config.model,
        is_dora=is_dora,
        notes=notes,
    )


def _require_plain(config: TrainingConfig) -> None:
    values, path = config.values, config.path
    if (kind := str(values["peft_type"])) != "LORA":
        raise InputError(path, f"describes a {kind} adapter", "mlx-lm has LoRA and DoRA only")
    if (task := values.get("task_type")) not in (None, "CAUSAL_LM"):
        raise InputError(path, f"is for the task {task}", "mlx-lm runs causal language models only")
    if (bias := values.get("bias", "none")) != "none":
        raise InputError(
            path, f"trains biases (bias: {bias})", "an mlx-lm adapter has no place for them"
        )
    for key, what in _REFUSED.items():
        if values.get(key):
            raise InputError(path, f"{key} is set: {what}", "mlx-lm has no counterpart")
    if (start := values.get("init_lora_weights")) not in _PLAIN_STARTS:
        raise InputError(
            path,
            f"init_lora_weights is {start!r}, with which PEFT may change the base model's weights",
            "in PEFT, save it with path_initial_model_for_weight_conversion first",
        )
    if unknown := sorted(key for key in values.keys() - _HARMLESS - _REFUSED.keys() if values[key]):
        raise InputError(
            path,
            f"sets {unknown[0]}, and what that does to the adapter is not known here",
            "convert an adapter without it",
        )
    if config.alpha is None or config.rank is None:
        raise InputError(
            path, "does not state both r and lora_alpha", "without them there is no scale"
        )
    patterns = values.get("alpha_pattern")
    for pattern in patterns if isinstance(patterns, dict) else ():
        if not _PLAIN_NAME.fullmatch(pattern):
            raise InputError(
                path,
                f"alpha_pattern has the regular expression {pattern!r}",
                "only plain names are read: a stranger's expression could run for ever",
            )


def _copied(tensor: TensorRef, base: BaseModel | None) -> str:
    """The note on a tensor that is a copy of the base model's, as PEFT saves of embeddings."""
    name = tensor.name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
    theirs = base.tensors.get(name) if base is not None else None
    if base is not None and name == f"{OUTPUT_HEAD}.weight" and is_tied(base):
        theirs = base.tensors.get(f"{EMBEDDING}.weight")
    if theirs is None or not is_same(stored_values(tensor), stored_values(theirs)):
        why = (
            "and no base model was found to compare it with"
            if base is None
            else "and it is not a copy of the base model's"
        )
        raise InputError(
            tensor.path,
            f"{tensor.name} is no LoRA factor, {why}",
            "an mlx-lm adapter holds nothing but factors",
        )
    return f"the copy of the base model's {name} is left out: it is the same bit for bit"


def _require_applied(module: LoraModule, config: TrainingConfig, is_dora: bool) -> None:
    path = module.a.path
    if _EXPERT.search(module.name):
        raise InputError(
            path,
            f"{module.name} is one expert's layer",
            "mlx-lm stacks all experts in one module, with factors for each",
        )
    if (module.magnitude is not None) != is_dora:
        has = "no DoRA magnitude" if is_dora else "a DoRA magnitude"
        raise InputError(
            path,
            f"{module.name} has {has}, but use_dora is {str(is_dora).lower()}",
            "correct use_dora, or save the adapter again",
        )
    if is_dora and "lora_embedding_A" in module.a.name:
        raise InputError(
            path,
            f"{module.name} is an embedding with DoRA, whose magnitudes are one a column here "
            "and one a row in mlx-lm",
            "train it with LoRA",
        )
    patterns = config.values.get("rank_pattern")
    ranks = patterns.values() if isinstance(patterns, dict) else ()
    if module.rank not in (config.rank, *ranks):
        raise InputError(
            path,
            f"{module.name} has rank {module.rank}, which {config.path.name} does not mention",
            "PEFT itself would refuse this adapter",
        )
    if not _is_targeted(module.name, config):
        raise InputError(
            path,
            f"{module.name} has factors, but {config.path.name} does not target it, so that PEFT "
            "would ignore them",
            "correct target_modules or layers_to_transform",
        )


def _is_targeted(name: str, config: TrainingConfig) -> bool:
    stated = config.values.get("target_modules")
    if not isinstance(stated, list):
        # "all-linear", or an expression, which is not run: PEFT saved what it matched.
        return True
    if name in stated or (name == OUTPUT_HEAD and config.values.get("ensure_weight_tying")):
        return True
    if not any(matches(str(key), name, config) for key in stated):
        return False
    layers = config.values.get("layers_to_transform")
    if layers is None or layers == []:
        return True
    return layer_of(name)[0] in (layers if isinstance(layers, list) else [layers])


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
    config: dict[str, Any] = {
        "alpha_pattern": {},
        "auto_mapping": None,
        "base_model_name_or_path": adapter.model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": alpha_for(scale, rank),
        "lora_dropout": adapter.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": [module.name for module in modules],
        "task_type": "CAUSAL_LM",
        "use_dora": adapter.is_dora,
        "use_rslora": False,
    }
    files = {
        "adapter_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        "adapter_model.safetensors": save(_tensors(modules), {"format": "pt"}),
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
    embedding = next((module for module in modules if module.is_embedding), None)
    if embedding is None or base is None or not is_tied(base):
        return modules, ()
    head = PortableModule(
        name=OUTPUT_HEAD,
        a=embedding.b.T,
        b=embedding.a.T,
        magnitude=None,
        scale=embedding.scale,
        is_embedding=False,
    )
    note = f"{OUTPUT_HEAD} gets the factors of {embedding.name}, which mlx-lm applies to both"
    return (*modules, head), (note,)


def _tensors(modules: Iterable[PortableModule]) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for module in modules:
        # PEFT holds an embedding's factors as bare parameters, without the ".weight".
        kind, end = ("lora_embedding", "") if module.is_embedding else ("lora", ".weight")
        tensors[f"{PEFT_PREFIX}{module.name}.{kind}_A{end}"] = np.ascontiguousarray(module.a.T)
        tensors[f"{PEFT_PREFIX}{module.name}.{kind}_B{end}"] = np.ascontiguousarray(module.b.T)
        if module.magnitude is not None:
            tensors[f"{PEFT_PREFIX}{module.name}.lora_magnitude_vector"] = module.magnitude
    return tensors
