"""Whether the adapter fits its configuration and its base model.

What it finds. Factors of another rank than configured; factors stored the wrong way
round; layers or modules that were configured and are not there; target keys that match
nothing; modules that the base model does not have, with the prefix in which the names
differ; factors whose shape is not that of the weight they change; DoRA without its
magnitudes, and the reverse; a scale that is missing or looks like an alpha; no
adapter_config.json at all.

Why it matters. Old loaders drop every name that they do not know without a word, so that
the base model answers; new ones refuse the adapter. A missing layer is training that
never happened. Without adapter_config.json no loader knows which layers to convert, or
by which scale: mlx-lm stops with a FileNotFoundError.

How it is measured. Names and shapes only, from the files' headers: nothing is loaded.
mlx-lm puts LoRA on the last `num_layers` layers and matches a key against the whole
name within the layer; PEFT matches the end of the name. Missing modules are an error
where `mlx_lm.lora` itself wrote the configuration, and where the same module has
factors in one adapted layer and none in another: mlx-lm treats all its layers alike.
Target keys are an error where not one of them names a module of the base model: mlx-lm
then converts nothing, and refuses the adapter's tensors.

When it is wrong. Base models that MLX did not write are renamed while they are loaded;
then a name that is not found is a warning only. What a custom trainer called its keys
may not be what mlx-lm would. A file that was named by itself may have its configuration
elsewhere, which is a note only.

What to do. Name the base model that the adapter was trained on. If the names differ by a
prefix, rename the tensors. If modules are missing, look at the keys and at num_layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import CONFIG_NAME, Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.weights.lora_targets import matches, missing_targets

_EXAMPLES = 3


@dataclass(frozen=True)
class Limits:
    """Thresholds of `adapter-structure`."""

    alpha_multiples: tuple[float, ...] = limit(
        (1.0, 2.0),
        unit="scale over rank",
        source="the usual choices of alpha in PEFT's examples; mlx-lm's default is 20 at rank 8",
        false_alarms="a note only",
    )
    alpha_from: float = limit(
        16.0, unit="scale", source="below that a multiple of the rank is an ordinary scale"
    )


def _examples(names: Sequence[str]) -> str:
    more = len(names) - _EXAMPLES
    return ", ".join(names[:_EXAMPLES]) + (f" and {more} more" if more > 0 else "")


@check(
    codes={
        "rank-mismatch": "the factors have another rank than the configuration says",
        "transposed": "the factors are stored the wrong way round",
        "missing-modules": "modules that the configuration names have no factors",
        "no-configuration": "there is no adapter_config.json, without which nothing loads it",
        "unmatched-key": "a target key of the configuration matches no adapted module",
        "no-module-in-base": "the base model has none of the adapted modules",
        "some-modules-not-in-base": "the base model lacks some of the adapted modules",
        "layer-out-of-range": "the adapter changes layers that the base model does not have",
        "shape-mismatch": "factors do not fit the weights they change",
        "scale-missing": "the configuration states no scale",
        "scale-looks-like-alpha": "the scale looks like an alpha, which mlx-lm does not divide",
        "dora-without-magnitude": "the configuration says DoRA and there are no magnitudes",
        "magnitude-without-dora": "there are magnitudes and the configuration does not say DoRA",
    },
    limits=Limits(),
    rerun_symptom=True,
)
def adapter_structure(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None, limits: Limits
) -> Iterator[Finding]:
    """Compare names and shapes of adapter, configuration and base model."""
    if config is not None and config.fine_tune_type == "full":
        raise NotApplicable("a full fine-tune has no LoRA factors")
    if not adapter.modules and not adapter.mismatched:
        raise NotApplicable("the adapter holds no LoRA factors")
    if (config is None or config.path.name != CONFIG_NAME) and not adapter.has_configuration:
        yield _no_configuration(adapter)
    if config is None and base is None:
        raise Inconclusive("there is neither a configuration nor a base model to compare with")
    transposed = _transposed(adapter, config)
    if transposed:
        yield Finding(
            "adapter-structure.transposed",
            Severity.ERROR,
            f"The factors of {len(transposed)} modules are stored the wrong way round for "
            f"{adapter.naming} names.",
            measured={"modules": len(transposed)},
            expected="lora_a (inputs, rank) and lora_b (rank, outputs)"
            if adapter.naming == "mlx-lm"
            else "lora_A (rank, inputs) and lora_B (outputs, rank)",
            where=_examples(transposed),
            fix="transpose both factors of every module",
        )
        return
    if config is not None:
        yield from _against_config(adapter, config, base, limits)
    if base is not None and adapter.modules:
        yield from _against_base(adapter, base)


def _no_configuration(adapter: Adapter) -> Finding:
    name = adapter.path.name
    rest = (
        "mlx-lm loads a folder that has both"
        if adapter.is_loose
        else "mlx-lm can't load the adapter, whose layers, rank and scale are unknown"
    )
    return Finding(
        "adapter-structure.no-configuration",
        Severity.INFO if adapter.is_loose else Severity.WARNING,
        f"There is no {CONFIG_NAME} beside {name}: {rest}.",
        measured={"file": name, "modules": len(adapter.modules)},
        expected=f"{CONFIG_NAME} in the adapter's folder",
        where=name,
        fix=f"write {CONFIG_NAME} with fine_tune_type, num_layers and lora_parameters as they "
        "were in training, and save the weights as adapters.safetensors",
    )


def _transposed(adapter: Adapter, config: TrainingConfig | None) -> list[str]:
    names = []
    for name in adapter.mismatched:
        shapes = {
            tensor.name.split("lora_")[-1][0].lower(): tensor.shape
            for tensor in adapter.tensors.values()
            if f"{name}.lora_" in tensor.name and len(tensor.shape) == 2
        }
        a, b = shapes.get("a"), shapes.get("b")
        # The right inner sizes meet only if both factors are turned round.
        inner = (1, 0) if adapter.naming == "peft" else (0, 1)
        if a and b and a[inner[0]] == b[inner[1]] and a[inner[0]] <= max(a[inner[1]], 1):
            names.append(name)
    rank = config.rank if config is not None else None
    # A square weight's factors can be multiplied either way; the rank tells.
    return names + [
        module.name
        for module in adapter.modules
        if rank and module.rank != rank and module.in_features == module.out_features == rank
    ]


def _against_config(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None, limits: Limits
) -> Iterator[Finding]:
    yield from _ranks(adapter, config)
    yield from _missing(adapter, config, base)
    yield from _magnitudes(adapter, config)
    yield from _scale(config, limits)


def _ranks(adapter: Adapter, config: TrainingConfig) -> Iterator[Finding]:
    rank = config.rank
    if rank is None or config.is_default("rank"):
        return
    own = config.values.get("rank_pattern")
    patterns = tuple(own) if isinstance(own, dict) else ()
    others = [
        module
        for module in adapter.modules
        if module.rank != rank and not any(module.name.endswith(one) for one in patterns)
    ]
    if others:
        yield Finding(
            "adapter-structure.rank-mismatch",
            Severity.ERROR,
            f"{len(others)} of {len(adapter.modules)} modules have rank {others[0].rank}, and the "
            f"configuration says {rank}: a loader builds factors of another shape.",
            measured={"modules": len(others), "rank": others[0].rank, "configured": rank},
            expected=f"rank {rank}",
            where=_examples([module.name for module in others]),
            fix="put the rank of the tensors into the configuration that lies beside them",
        )


def _missing(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Finding]:
    names = [module.name for module in adapter.modules]
    unmatched = [
        key
        for key in config.keys or ()
        if not _is_pattern(config) and not any(matches(key, name, config) for name in names)
    ]
    if unmatched:
        yield _unmatched(unmatched, config, base)
    if base is not None and (absent := missing_targets(adapter, config, base)) is not None:
        missing = absent.names
        # Factors under names that the base does not know may be those that are missing.
        strangers = any(base.module_for(name) is None for name in names)
        if missing and len(missing) < absent.expected and not strangers:
            where, certain = _examples(missing), absent.is_certain
            yield _missing_modules(len(missing), absent.expected, "modules", where, certain=certain)
        return
    layers = {module.layer for module in adapter.modules if module.layer is not None}
    wanted = config.num_layers
    if wanted is not None and not config.is_default("num_layers") and 0 < len(layers) < wanted:
        yield _missing_modules(wanted - len(layers), wanted, "layers", None, certain=False)


def _unmatched(unmatched: Sequence[str], config: TrainingConfig, base: BaseModel | None) -> Finding:
    keys = config.keys or ()
    in_base = [
        key
        for key in keys
        if base is not None and any(matches(key, name, config) for name in base.linear_shapes)
    ]
    none = base is not None and len(unmatched) == len(keys) and not in_base
    rest = ", nor any module of the base model: nothing is converted" if none else ""
    return Finding(
        "adapter-structure.unmatched-key",
        # The names in files that MLX did not write are not those that a key is compared with.
        Severity.ERROR if none and base is not None and base.is_mlx else Severity.WARNING,
        f"{len(unmatched)} of {len(keys)} target keys match no adapted module{rest}: "
        f"{_examples(unmatched)}.",
        measured={"keys": tuple(unmatched), "in_base": len(in_base) if base is not None else None},
        expected="every key names a module",
        where=_examples(unmatched),
        fix="with mlx-lm write the name within the layer (self_attn.q_proj), not its last part",
    )


def _is_pattern(config: TrainingConfig) -> bool:
    return config.origin == "peft" and isinstance(config.values.get("target_modules"), str)


def _missing_modules(
    missing: int, expected: int, what: str, where: str | None, *, certain: bool
) -> Finding:
    rest = ": they stay as the base model has them, untrained" if certain else ""
    return Finding(
        "adapter-structure.missing-modules",
        Severity.ERROR if certain else Severity.WARNING,
        f"{missing} of the {expected} {what} that the configuration names have no factors{rest}.",
        measured={"missing": missing, "expected": expected},
        expected=f"factors for all {expected} {what}",
        where=where,
        fix="save every trainable parameter, and look for what dropped these"
        if certain
        else "check keys and num_layers against the trainer that was used",
    )


def _magnitudes(adapter: Adapter, config: TrainingConfig) -> Iterator[Finding]:
    with_magnitude = sum(module.magnitude is not None for module in adapter.modules)
    without = len(adapter.modules) - with_magnitude
    if config.fine_tune_type == "dora" and without:
        yield Finding(
            "adapter-structure.dora-without-magnitude",
            Severity.WARNING,
            f"The configuration says DoRA, and {without} of {len(adapter.modules)} modules have no "
            "magnitude.",
            measured={"without": without, "modules": len(adapter.modules)},
            expected="a magnitude for every module",
            fix="save the magnitudes, or configure LoRA",
        )
    elif config.fine_tune_type == "lora" and with_magnitude:
        yield Finding(
            "adapter-structure.magnitude-without-dora",
            Severity.WARNING,
            f"{with_magnitude} modules have a DoRA magnitude, and the configuration says LoRA: a "
            "loader has no place for it.",
            measured={"with_magnitude": with_magnitude, "modules": len(adapter.modules)},
            expected="no magnitudes",
            fix="set fine_tune_type to dora in the configuration beside the adapter",
        )


def _scale(config: TrainingConfig, limits: Limits) -> Iterator[Finding]:
    if config.scale is None:
        alpha = f" (it states alpha {config.alpha:g})" if config.alpha is not None else ""
        yield Finding(
            "adapter-structure.scale-missing",
            Severity.WARNING,
            f"The configuration states no scale for the update{alpha}, which mlx-lm requires.",
            measured={"alpha": config.alpha, "rank": config.rank},
            expected="lora_parameters.scale, which is alpha / rank",
            where=config.path.name,
            fix="write scale: alpha / rank into lora_parameters",
        )
    elif (
        config.origin == "mlx-lm"
        and config.rank
        and not config.is_default("scale")
        and config.scale >= limits.alpha_from
        and config.scale / config.rank in limits.alpha_multiples
    ):
        yield Finding(
            "adapter-structure.scale-looks-like-alpha",
            Severity.INFO,
            f"The scale of {config.scale:g} is {config.scale / config.rank:g} times the rank, as "
            "an alpha often is; mlx-lm multiplies by it without dividing by the rank.",
            measured={"scale": config.scale, "rank": config.rank},
            expected=f"{config.scale / config.rank:g}, if {config.scale:g} was meant as alpha",
            where=config.path.name,
            fix="if the value came from PEFT, write alpha / rank",
        )


def _against_base(adapter: Adapter, base: BaseModel) -> Iterator[Finding]:
    layers = base.num_layers
    beyond = [
        module
        for module in adapter.modules
        if layers is not None and module.layer is not None and module.layer >= layers
    ]
    if beyond:
        top = max(module.layer or 0 for module in beyond)
        yield Finding(
            "adapter-structure.layer-out-of-range",
            Severity.ERROR,
            f"{len(beyond)} modules belong to layers up to number {top}, and the base model has "
            f"{layers} layers, 0 to {(layers or 0) - 1}.",
            measured={"modules": len(beyond), "layer": top, "base_layers": layers},
            expected=f"layers below {layers}",
            where=_examples([module.name for module in beyond]),
            fix="name the base model that the adapter was trained on",
        )
    rest = [module for module in adapter.modules if module not in beyond]
    absent = [module for module in rest if base.module_for(module.name) is None]
    if absent:
        yield _absent(absent, len(rest), base)
    yield from _shapes([module for module in rest if module not in absent], base)


def _absent(absent: Sequence[LoraModule], compared: int, base: BaseModel) -> Finding:
    every = len(absent) == compared
    first = absent[0].name
    closest = base.closest_module(first)
    hint = f"; the closest name in the base model is {closest}" if closest else ""
    return Finding(
        "adapter-structure.no-module-in-base"
        if every
        else "adapter-structure.some-modules-not-in-base",
        Severity.ERROR if base.is_mlx else Severity.WARNING,
        f"{'None' if every else len(absent)} of the {compared} adapted modules "
        f"{'is' if every else 'are not'} in the base model, {first} for one{hint}: old loaders "
        "drop them silently, new ones refuse.",
        measured={"missing": len(absent), "modules": compared, "closest": closest},
        expected="every adapted module is in the base model",
        where=_examples([module.name for module in absent]),
        fix="rename the tensors to the base model's names"
        if closest
        else "name the base model that the adapter was trained on",
    )


def _shapes(modules: Sequence[LoraModule], base: BaseModel) -> Iterator[Finding]:
    bad = [
        module
        for module in modules
        if (module.in_features, module.out_features) != base.linear_shapes.get(module.name)
        or (module.experts is not None and module.experts != base.shape(module.name)[0])
    ]
    if bad:
        first = bad[0]
        inputs, outputs = base.linear_shapes.get(first.name, (0, 0))
        yield Finding(
            "adapter-structure.shape-mismatch",
            Severity.ERROR,
            f"The factors of {len(bad)} of {len(modules)} modules do not fit the base model: "
            f"{first.name} maps {first.in_features} to {first.out_features}, and the weight "
            f"{inputs} to {outputs}.",
            measured={
                "modules": len(bad),
                "in": first.in_features,
                "out": first.out_features,
                "base_in": inputs,
                "base_out": outputs,
            },
            expected=f"{inputs} inputs and {outputs} outputs",
            where=_examples([module.name for module in bad]),
            fix="name the base model that the adapter was trained on",
        )
