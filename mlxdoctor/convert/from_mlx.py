"""Reading an mlx-lm adapter into what both formats can say."""

from __future__ import annotations

from collections.abc import Mapping

from mlxdoctor.convert.portable import PortableAdapter, PortableModule
from mlxdoctor.convert.raw import read_raw
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
            name=one.name,
            a=read_raw(one.a),
            b=read_raw(one.b),
            magnitude=read_raw(one.magnitude) if one.magnitude else None,
            scale=config.scale,
            is_embedding=is_embedding(one.name),
        )
        for one in adapter.modules
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
