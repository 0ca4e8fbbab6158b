"""What of an adapter can't be carried over, and why: the reason instead of a file that differs."""

import re
from collections.abc import Iterator, Mapping
from math import isfinite

from mlxdoctor.convert.libraries import LIBRARIES, Library
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel, is_embedding
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import some_of
from mlxdoctor.measure.weights.adapter_facts import module_scale
from mlxdoctor.measure.weights.lora_targets import peft_targets, refused_tensors
from mlxdoctor.safety.errors import InputError

#: What is wrong, and what to do.
Refusals = Iterator[tuple[str, str]]

_OUTPUT_HEAD = "lm_head"
#: Settings of PEFT that are read elsewhere, or say nothing about what the adapter computes. Any
#: other that is set changes what it computes, or may: mlx-lm has nothing like it.
_HARMLESS = frozenset(
    """
    auto_mapping base_model_name_or_path bias corda_config ensure_weight_tying
    eva_config exclude_modules fan_in_fan_out inference_mode init_lora_weights layers_pattern
    layers_to_transform loftq_config lora_alpha lora_dropout lora_ga_config megatron_core
    merge_weights peft_type peft_version qalora_group_size r revision runtime_config
    target_modules task_type use_dora use_rslora velora_config
    """.split()  # noqa: SIM905
)
# The other ways to start (pissa, olora, corda, loftq, …) change the base model's weights.
_PLAIN_STARTS = (None, True, False, "gaussian", "orthogonal", "eva")
# The names that mlx-lm and transformers share in every architecture that has them; others
# are renamed in some (mlx-lm calls the w1 of Lfm2's experts gate_proj).
_SHARED = re.compile(
    r"model\.layers\.\d+\.(self_attn\.(q|k|v|o|qkv)_proj|mlp\.(gate|up|down|gate_up)_proj)"
)


def require_convertible(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None, source: Library
) -> None:
    """Refuse what the other library has nothing like, or the adapter's own would not load."""
    settings = _peft_settings if source == "peft" else _mlx_settings
    for path, refusals in (
        (adapter.path, _whole(adapter, config)),
        (config.path, settings(config)),
        (adapter.path, _loadable(adapter, config, base, source)),
        (adapter.path, _modules(adapter, config, source)),
        (config.path, _scales(adapter, config)),
        (adapter.path, _fit(adapter, base, source)),
    ):
        for problem, remedy in refusals:
            raise InputError(path, problem, remedy)


def _whole(adapter: Adapter, config: TrainingConfig) -> Refusals:
    if adapter.not_float:
        problem = f"has no floating-point factors for {adapter.not_float[0]}"
        yield problem, "save the adapter in float32, float16 or bfloat16"
    if not adapter.modules:
        yield "holds no pair of LoRA factors", "there is nothing to convert"
    for name in (*adapter.unpaired, *adapter.mismatched):
        problem = f"{name} has no partner, or none that it can be multiplied with"
        yield problem, "the adapter is incomplete"
    for tensor in adapter.others:
        problem = f"{tensor.name} is no LoRA factor, or that of a module that has another"
        yield problem, "keep one adapter a file, and nothing else"
    for module in adapter.modules:
        if not module.rank:
            yield f"{module.name} has rank 0", "there is nothing to convert"
    if adapter.naming != config.origin:
        problem = f"has the names of {adapter.naming}, but {config.path.name} is of {config.origin}"
        yield problem, "put the configuration that was saved with it beside it"


def _loadable(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None, source: Library
) -> Refusals:
    if source == "mlx":
        for tensors, reason in refused_tensors(adapter, config, base):
            problem = f"mlx-lm itself refuses {some_of(tensors, 2)}: {reason}"
            yield problem, "load the adapter once with mlx-lm"
        return
    names = [module.name for module in adapter.modules]
    # Without target_modules, or with a pattern, which is not run: PEFT saved what it matched.
    targets = peft_targets(config, names)
    for name in names:
        if targets is not None and name not in targets:
            yield (
                f"{name} has factors, but {config.path.name} does not target it, so that PEFT "
                "would ignore them",
                "correct target_modules or layers_to_transform",
            )


def _mlx_settings(config: TrainingConfig) -> Refusals:
    if (kind := config.fine_tune_type) not in ("lora", "dora"):
        problem = f"describes a fine-tune of type {kind}, which has no LoRA factors"
        yield problem, "save the whole model instead"
    has_parameters = isinstance(config.values.get("lora_parameters"), Mapping)
    if not has_parameters or config.scale is None or config.rank is None:
        problem = "does not state both lora_parameters.rank and lora_parameters.scale"
        yield problem, "without the scale the factors mean nothing"


def _peft_settings(config: TrainingConfig) -> Refusals:
    values = config.values
    for key, usual in (
        ("peft_type", ("LORA",)),
        ("task_type", (None, "CAUSAL_LM")),
        ("bias", (None, "none")),
    ):
        if values.get(key) not in usual:
            only = "mlx-lm has LoRA and DoRA for causal language models only, without biases"
            yield f"says {values.get(key)} for {key}", only
    if (start := values.get("init_lora_weights")) not in _PLAIN_STARTS:
        yield (
            f"init_lora_weights is {start!r}, with which PEFT may change the base model's weights",
            "in PEFT, save it with path_initial_model_for_weight_conversion first",
        )
    for key in sorted(values.keys() - _HARMLESS):
        if values[key]:
            yield f"sets {key}", "mlx-lm has no known counterpart of that"
    if config.alpha is None or config.rank is None:
        yield "does not state both r and lora_alpha", "without them there is no scale"


def _modules(adapter: Adapter, config: TrainingConfig, source: Library) -> Refusals:
    is_dora = config.fine_tune_type == "dora"
    for module in adapter.modules:
        if module.experts is not None:
            problem = f"{module.name} has factors for each of {module.experts} experts, stacked"
            yield problem, "PEFT puts LoRA on single linear layers and has no such module"
        if module.rank != config.rank:
            yield (
                f"{module.name} has rank {module.rank}, but {config.path.name} says {config.rank}",
                f"{LIBRARIES[source].name} itself would refuse this adapter",
            )
        if (module.magnitude is not None) != is_dora:
            yield (
                f"{module.name} has {'no' if is_dora else 'a'} DoRA magnitude, but "
                f"{config.path.name} says {config.fine_tune_type}",
                "correct that, or save the adapter again",
            )
        is_outside = module.name == _OUTPUT_HEAD or is_embedding(module.name)
        if is_outside or "lora_embedding_A" in module.a.name:
            yield (
                f"{module.name} is an embedding or the output head, which may share their weight: "
                "mlx-lm adapts both with the same factors, PEFT each with its own",
                "put LoRA on the linear layers of blocks only",
            )


def _scales(adapter: Adapter, config: TrainingConfig) -> Refusals:
    scales = (module_scale(module, config) for module in adapter.modules)
    if not all(map(isfinite, (config.dropout or 0.0, *scales))):
        problem = "states a scale or a dropout that is not a finite number"
        yield problem, "write the one that it was trained with"


def _fit(adapter: Adapter, base: BaseModel | None, source: Library) -> Refusals:
    """Modules that the base lacks, or whose name or weight in the other library is not known."""
    # A base that the other library wrote has that library's names.
    are_looked_up = base is not None and base.is_mlx == (source == "peft")
    other = LIBRARIES["mlx" if source == "peft" else "peft"]
    for module in adapter.modules:
        if base is not None:
            yield from _misfits(module, base)
        if not are_looked_up and not _SHARED.fullmatch(module.name):
            problem = f"the module {module.name} may have another name in {other.name}"
            remedy = f"name the base model's folder, saved by {other.saves_models}, with --base"
            yield problem, remedy


def _misfits(module: LoraModule, base: BaseModel) -> Refusals:
    theirs, ours = base.linear_shapes.get(module.name), (module.in_features, module.out_features)
    # Weights packed by another quantiser have no shape here, but they have the name.
    if theirs is None and not any(name.startswith(f"{module.name}.") for name in base.tensors):
        problem = f"the module {module.name} is not in the base model {base.path}"
        remedy = "the adapter does not belong to it, or is saved under names that no loader finds"
        yield problem, remedy
    if theirs is not None and theirs != ours:
        yield (
            f"{module.name} takes {ours[0]:,} inputs to {ours[1]:,} outputs, but in the base "
            f"model {base.path} {theirs[0]:,} to {theirs[1]:,}",
            "the adapter belongs to another model",
        )
