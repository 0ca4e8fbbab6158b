"""What of an adapter can't be carried over, and why: the reason instead of a file that differs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mlxdoctor.convert.portable import (
    EMBEDDING,
    LIBRARIES,
    OUTPUT_HEAD,
    Library,
    PortableAdapter,
    PortableModule,
    is_tied,
)
from mlxdoctor.evidence.adapter import Adapter, LoraModule, layer_of
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.safety.errors import InputError

#: Whether something is so, the problem with that, and what to do.
Case = tuple[object, str, str]

#: Settings of PEFT that change what the adapter computes, and why mlx-lm cannot follow.
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
    # A list of a name a line would be four times as long.
    """
    alpha_pattern auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying
    eva_config exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern
    layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_core
    merge_weights peft_type peft_version qalora_group_size r rank_pattern revision runtime_config
    target_modules task_type use_dora use_rslora velora_config
    """.split()  # noqa: SIM905
)
# The other ways to start (pissa, olora, corda, loftq, …) change the base model's weights.
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_PLAIN_NAME = re.compile(r"[\w.-]+")
# The names that mlx-lm and transformers share in every architecture that has them; others
# are renamed in some (mlx-lm calls the w1 of Lfm2's experts gate_proj).
_SHARED = re.compile(
    r"model\.layers\.\d+\.(self_attn\.(q|k|v|o|qkv)_proj|mlp\.(gate|up|down|gate_up)_proj)"
    rf"|{re.escape(EMBEDDING)}|{OUTPUT_HEAD}"
)
_UNLOADABLE = "mlx-lm itself would refuse this adapter"


def require_whole(adapter: Adapter, config: TrainingConfig) -> None:
    """Refuse an adapter that lacks something, whichever library it is from.

    Raises:
        InputError: factors without a partner, of no floating-point type, of rank 0; a
            configuration that is another library's.
    """
    broken = (*adapter.unpaired, *adapter.mismatched)
    second = [module.name for module in adapter.others if ".lora_" in module.name]
    empty = [module.name for module in adapter.modules if not module.rank]
    no_pair = "holds no pair of LoRA factors"
    _refuse(
        adapter.path,
        (
            adapter.not_float,
            f"has no floating-point factors for {_first(adapter.not_float)}",
            "save the adapter in float32, float16 or bfloat16",
        ),
        (not adapter.modules, no_pair, "there is nothing to convert"),
        (
            broken,
            f"{_first(broken)} has no partner, or none that it can be multiplied with",
            "the adapter is incomplete",
        ),
        (
            second,
            f"{_first(second)} is a factor of a module that has another in its place",
            "keep one adapter a file",
        ),
        (empty, f"{_first(empty)} has rank 0", "there is nothing to convert"),
        (
            adapter.naming != config.origin,
            f"has the names of {adapter.naming}, but {config.path.name} is of {config.origin}",
            "put the configuration that was saved with it beside it",
        ),
    )


def require_convertible(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None, source: Library
) -> None:
    """Refuse what the other library has nothing like, or the adapter's own would not load.

    Raises:
        InputError: such a setting or module.
    """
    if source == "peft":
        _require_peft_settings(config)
        for module in adapter.modules:
            _refuse(adapter.path, *_peft_module(module, config))
    else:
        _require_mlx_settings(adapter, config)
        for module in adapter.modules:
            _refuse(adapter.path, *_mlx_module(module, config, base))


def _require_mlx_settings(adapter: Adapter, config: TrainingConfig) -> None:
    kind, others = config.fine_tune_type, adapter.others
    is_stated = isinstance(config.values.get("lora_parameters"), Mapping)
    more = f" and {len(others) - 1} other tensors are" if len(others) > 1 else " is"
    _refuse(
        config.path,
        (
            kind not in ("lora", "dora"),
            f"describes a fine-tune of type {kind}, which has no LoRA factors",
            "save the whole model instead",
        ),
        (
            not is_stated or config.scale is None or config.rank is None,
            "does not state both lora_parameters.rank and lora_parameters.scale",
            "without the scale the factors mean nothing",
        ),
    )
    name = _first([tensor.name for tensor in others])
    _refuse(
        adapter.path,
        (others, f"{name}{more} no LoRA factor", "mlx-lm itself would refuse it in an adapter"),
    )


def _mlx_module(
    module: LoraModule, config: TrainingConfig, base: BaseModel | None
) -> Iterable[Case]:
    is_dora = config.fine_tune_type == "dora"
    yield (
        module.experts is not None,
        f"{module.name} has factors for each of {module.experts} experts, stacked",
        "PEFT puts LoRA on single linear layers and has no such module",
    )
    yield (
        module.rank != config.rank,
        f"{module.name} has rank {module.rank}, but {config.path.name} says {config.rank}",
        _UNLOADABLE,
    )
    yield _wrong_magnitude(
        module, is_dora, f"{config.path.name} says {config.fine_tune_type}", "fine_tune_type"
    )
    yield (
        is_dora and is_embedding(module.name),
        f"{module.name} is an embedding with DoRA, whose magnitudes are one a row here and "
        "one a column in PEFT",
        "train it with LoRA",
    )
    yield (
        not _is_attached(module, config, base),
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


def _require_peft_settings(config: TrainingConfig) -> None:
    values = config.values
    kind, task = str(values["peft_type"]), values.get("task_type")
    bias, start = values.get("bias", "none"), values.get("init_lora_weights")
    unknown = sorted(key for key in values.keys() - _HARMLESS - _REFUSED.keys() if values[key])
    stated = values.get("alpha_pattern")
    patterns = stated if isinstance(stated, dict) else {}
    expressions = [pattern for pattern in patterns if not _PLAIN_NAME.fullmatch(pattern)]
    _refuse(
        config.path,
        (kind != "LORA", f"describes a {kind} adapter", "mlx-lm has LoRA and DoRA only"),
        (
            task not in (None, "CAUSAL_LM"),
            f"is for the task {task}",
            "mlx-lm runs causal language models only",
        ),
        (
            bias != "none",
            f"trains biases (bias: {bias})",
            "an mlx-lm adapter has no place for them",
        ),
        *(
            (values.get(key), f"{key} is set: {what}", "mlx-lm has no counterpart")
            for key, what in _REFUSED.items()
        ),
        (
            start not in _PLAIN_STARTS,
            f"init_lora_weights is {start!r}, with which PEFT may change the base model's weights",
            "in PEFT, save it with path_initial_model_for_weight_conversion first",
        ),
        (
            unknown,
            f"sets {_first(unknown)}, and what that does to the adapter is not known here",
            "convert an adapter without it",
        ),
        (
            config.alpha is None or config.rank is None,
            "does not state both r and lora_alpha",
            "without them there is no scale",
        ),
        (
            expressions,
            f"alpha_pattern has the regular expression {_first(expressions)!r}",
            "only plain names are read: a stranger's expression could run for ever",
        ),
    )


def _peft_module(module: LoraModule, config: TrainingConfig) -> Iterable[Case]:
    is_dora = config.fine_tune_type == "dora"
    patterns = config.values.get("rank_pattern")
    ranks = patterns.values() if isinstance(patterns, dict) else ()
    yield (
        _EXPERT.search(module.name),
        f"{module.name} is one expert's layer",
        "mlx-lm stacks all experts in one module, with factors for each",
    )
    yield _wrong_magnitude(module, is_dora, f"use_dora is {str(is_dora).lower()}", "use_dora")
    yield (
        is_dora and "lora_embedding_A" in module.a.name,
        f"{module.name} is an embedding with DoRA, whose magnitudes are one a column here "
        "and one a row in mlx-lm",
        "train it with LoRA",
    )
    yield (
        module.rank not in (config.rank, *ranks),
        f"{module.name} has rank {module.rank}, which {config.path.name} does not mention",
        "PEFT itself would refuse this adapter",
    )
    yield (
        not _is_targeted(module.name, config),
        f"{module.name} has factors, but {config.path.name} does not target it, so that PEFT "
        "would ignore them",
        "correct target_modules or layers_to_transform",
    )


def _wrong_magnitude(module: LoraModule, is_dora: bool, says: str, setting: str) -> Case:
    has = "no DoRA magnitude" if is_dora else "a DoRA magnitude"
    remedy = f"correct {setting}, or save the adapter again"
    is_wrong = (module.magnitude is not None) != is_dora
    return is_wrong, f"{module.name} has {has}, but {says}", remedy


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


def require_fit(adapter: PortableAdapter, base: BaseModel | None, target: Library) -> None:
    """Refuse modules that the base lacks, or whose name in the other library is unknown.

    Raises:
        InputError: such a module, or an embedding or output head without a base model to
            tell whether the two share a weight.
    """
    are_looked_up = base is not None and base.is_mlx == (target == "mlx")
    there = LIBRARIES[target]
    name_base = "name the base model's folder with --base"
    for module in adapter.modules:
        if base is not None:
            _refuse(adapter.path, *_misfits(module, base))
        may_share = module.is_embedding or (module.name == OUTPUT_HEAD and target == "mlx")
        _refuse(
            adapter.path,
            (
                base is None and may_share,
                f"whether {module.name} shares its weight with another module decides how it is "
                "converted, and no base model was found",
                name_base,
            ),
            (
                not are_looked_up and not _SHARED.fullmatch(module.name),
                f"the module {module.name} may have another name in {there.name}",
                f"{name_base}, saved by {there.saves_models}, to look it up",
            ),
        )


def _misfits(module: PortableModule, base: BaseModel) -> Iterable[Case]:
    shape = base.linear_shapes.get(module.name)
    if shape is None:
        # Weights packed by another quantiser have no shape here, but they have the name.
        is_there = any(name.startswith(f"{module.name}.") for name in base.tensors)
        yield (
            not is_there and not (module.name == OUTPUT_HEAD and is_tied(base)),
            f"the module {module.name} is not in the base model {base.path}",
            "the adapter does not belong to it, or is saved under names that no loader finds",
        )
        return
    ours = (module.a.shape[0], module.b.shape[1])
    yield (
        shape != ours,
        f"{module.name} takes {ours[0]:,} inputs to {ours[1]:,} outputs, but in the base "
        f"model {base.path} {shape[0]:,} to {shape[1]:,}",
        "the adapter belongs to another model",
    )


def _refuse(path: Path, *cases: Case) -> None:
    for is_so, problem, remedy in cases:
        if is_so:
            raise InputError(path, problem, remedy)


def _first(names: Iterable[str]) -> str:
    return next(iter(names), "")
