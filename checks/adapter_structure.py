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

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlxdoctor.check import DoesNotArise, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.finding import Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.judge.rate import BandLimits, better_scale, step_of
from mlxdoctor.measure.weights.lora_targets import matches, missing_targets

#: What some models compute in one layer and use in others.
_SHARED = frozenset({"k_proj", "v_proj"})
_NAME_THE_BASE = "name the base model that the adapter was trained on"


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


@check(
    codes={
        "rank-mismatch": Symptom.error(
            "the factors have another rank than the configuration says",
            fix="put the rank of the tensors into the configuration that lies beside them",
        ),
        "transposed": Symptom.error(
            "the factors are stored the wrong way round",
            expected="lora_a (inputs, rank) and lora_b (rank, outputs)",
            fix="transpose both factors of every module",
        ),
        "missing-modules": Symptom.warning(
            "modules that the configuration names have no factors",
            fix="check keys and num_layers against the trainer that was used",
        ),
        "no-configuration": Symptom.warning(
            "there is no adapter_config.json, without which nothing loads it",
            expected=f"{CONFIG_NAME} in the adapter's folder",
            fix=f"write {CONFIG_NAME} with fine_tune_type, num_layers and lora_parameters as they "
            "were in training, and save the weights as adapters.safetensors",
        ),
        "unmatched-key": Symptom.warning(
            "a target key of the configuration matches no adapted module",
            expected="every key names a module",
            fix="with mlx-lm write the name within the layer (self_attn.q_proj), not its last part",
        ),
        "no-module-in-base": Symptom.warning(
            "the base model has none of the adapted modules",
            expected="every adapted module is in the base model",
            fix="rename the tensors to the base model's names",
        ),
        "some-modules-not-in-base": Symptom.warning(
            "the base model lacks some of the adapted modules",
            expected="every adapted module is in the base model",
            fix="rename the tensors to the base model's names",
        ),
        "layer-out-of-range": Symptom.error(
            "the adapter changes layers that the base model does not have", fix=_NAME_THE_BASE
        ),
        "shape-mismatch": Symptom.error(
            "factors do not fit the weights they change", fix=_NAME_THE_BASE
        ),
        "scale-missing": Symptom.error(
            "the configuration states no scale",
            expected="lora_parameters.scale, which is alpha / rank",
            fix="write scale: alpha / rank into lora_parameters",
        ),
        "scale-looks-like-alpha": Symptom.info(
            "the scale looks like an alpha, which mlx-lm does not divide",
            fix="if the value came from PEFT, divide it by the rank",
        ),
        "dora-without-magnitude": Symptom.warning(
            "the configuration says DoRA and there are no magnitudes",
            expected="a magnitude for every module",
            fix="save the magnitudes, or configure LoRA",
        ),
        "magnitude-without-dora": Symptom.warning(
            "there are magnitudes and the configuration does not say DoRA",
            expected="no magnitudes",
            fix="set fine_tune_type to dora in the configuration beside the adapter",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def adapter_structure(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Compare names and shapes of adapter, configuration and base model."""
    if config is not None and config.fine_tune_type == "full":
        raise DoesNotArise("a full fine-tune has no LoRA factors")
    if not adapter.modules and not adapter.mismatched:
        raise NotApplicable("the adapter holds no pair of LoRA factors that could be compared")
    if (config is None or config.path.name != CONFIG_NAME) and not adapter.has_configuration:
        yield _no_configuration(adapter)
    if base is None:
        against = ("no-module-in-base", "some-modules-not-in-base", "layer-out-of-range")
        why = "the base model is not at hand; name its folder with --base"
        yield Unsought((*against, "shape-mismatch"), why)
    if config is None and base is None:
        raise Inconclusive("there is neither a configuration nor a base model to compare with")
    if transposed := _transposed(adapter, config):
        is_peft = adapter.naming == "peft"
        yield Sign(
            "transposed",
            f"The factors of {len(transposed)} modules are stored the wrong way round for "
            f"{adapter.naming} names.",
            {"modules": len(transposed)},
            where=some_of(transposed),
            expected="lora_A (rank, inputs) and lora_B (outputs, rank)" if is_peft else None,
        )
        return
    if config is not None:
        yield from _ranks(adapter, config)
        yield from _unmatched(adapter, config, base)
        yield from _missing(adapter, config, base)
        yield from _magnitudes(adapter, config)
        yield from _scale(config, base, limits)
    if base is not None and adapter.modules:
        yield from _against_base(adapter, base)


def _no_configuration(adapter: Adapter) -> Sign:
    name = adapter.path.name
    rest = (
        "mlx-lm loads a folder that has both"
        if adapter.is_loose
        else "mlx-lm can't load the adapter, whose layers, rank and scale are unknown"
    )
    return Sign(
        "no-configuration",
        f"There is no {CONFIG_NAME} beside {name}: {rest}.",
        {"file": name, "modules": len(adapter.modules)},
        where=name,
        severity=Severity.INFO if adapter.is_loose else None,
    )


def _transposed(adapter: Adapter, config: TrainingConfig | None) -> list[str]:
    # The right inner sizes meet only if both factors are turned round.
    inner, outer = (1, 0) if adapter.naming == "peft" else (0, 1)
    names = []
    for name in adapter.mismatched:
        shapes = {
            tensor.name.split("lora_")[-1][0].lower(): tensor.shape
            for tensor in adapter.tensors.values()
            if f"{name}.lora_" in tensor.name and len(tensor.shape) == 2
        }
        a, b = shapes.get("a"), shapes.get("b")
        if a and b and a[inner] == b[outer] and a[inner] <= max(a[outer], 1):
            names.append(name)
    rank = config.rank if config is not None else None
    # A square weight's factors can be multiplied either way; the rank tells.
    return names + [
        module.name
        for module in adapter.modules
        if rank and module.rank != rank and module.in_features == module.out_features == rank
    ]


def _ranks(adapter: Adapter, config: TrainingConfig) -> Iterator[Sign]:
    rank = config.rank
    if rank is None or config.is_default("rank"):
        return
    own = config.values.get("rank_pattern")
    patterns = tuple(own) if isinstance(own, dict) else ()
    others = [
        one for one in adapter.modules if one.rank != rank and not one.name.endswith(patterns)
    ]
    if others:
        yield Sign(
            "rank-mismatch",
            f"{len(others)} of {len(adapter.modules)} modules have rank {_ranks_of(others)}, and "
            f"the configuration says {rank}: a loader builds factors of another shape.",
            {"modules": len(others), "rank": others[0].rank, "configured": rank},
            where=_names(others),
            expected=f"rank {rank}",
        )


def _ranks_of(modules: Sequence[LoraModule]) -> str:
    """ "2, 4 or 8": every rank among them."""
    *rest, last = sorted({one.rank for one in modules})
    return f"{', '.join(map(str, rest))} or {last}" if rest else f"{last}"


def _unmatched(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    keys = config.keys or ()
    if config.origin == "peft" and isinstance(config.values.get("target_modules"), str):
        return  # one pattern for all names

    def having(names: Sequence[str]) -> list[str]:
        return [key for key in keys if any(matches(key, name, config) for name in names)]

    matched = having([module.name for module in adapter.modules])
    unmatched = [key for key in keys if key not in matched]
    if not unmatched:
        return
    in_base = having(list(base.linear_shapes)) if base is not None else None
    none = in_base == [] and not matched
    rest = ", nor any module of the base model: nothing is converted" if none else ""
    # The names in files that MLX did not write are not those that a key is compared with.
    certain = none and base is not None and base.is_mlx
    yield Sign(
        "unmatched-key",
        f"{len(unmatched)} of {len(keys)} target keys match no adapted module{rest}: "
        f"{some_of(unmatched)}.",
        {"keys": tuple(unmatched), "in_base": len(in_base) if in_base is not None else None},
        where=some_of(unmatched),
        severity=Severity.ERROR if certain else None,
    )


def _missing(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    if base is not None and (absent := missing_targets(adapter, config, base)) is not None:
        # Factors under names that the base does not know may be those that are missing.
        strangers = any(base.module_for(module.name) is None for module in adapter.modules)
        if 0 < len(absent.names) < absent.expected and not strangers:
            certain = absent.is_certain
            yield Sign(
                "missing-modules",
                f"{len(absent.names)} of the {absent.expected} modules that the configuration "
                "names have no factors"
                + (": they stay as the base model has them, untrained." if certain else "."),
                {"missing": len(absent.names), "expected": absent.expected},
                where=some_of(absent.names),
                severity=Severity.ERROR if certain else None,
                expected=f"factors for all {absent.expected} modules",
                fix="save every trainable parameter, and look for what dropped these"
                if certain
                else None,
            )
        return
    if lacking := _lacking_siblings(adapter):
        yield Sign(
            "missing-modules",
            f"{_modules(len(lacking))} no factors although those beside "
            f"{'it' if len(lacking) == 1 else 'them'} have, and although other layers have factors "
            "of both.",
            {"missing": len(lacking), "expected": len(adapter.modules) + len(lacking)},
            where=some_of(lacking),
            expected="factors of the same modules in every layer",
        )
        return
    layers = {module.layer for module in adapter.modules if module.layer is not None}
    wanted = config.num_layers
    if wanted is not None and not config.is_default("num_layers") and 0 < len(layers) < wanted:
        yield Sign(
            "missing-modules",
            f"{wanted - len(layers)} of the {wanted} layers that the configuration names have no "
            "factors.",
            {"missing": wanted - len(layers), "expected": wanted},
            expected=f"factors for all {wanted} layers",
        )


def _modules(count: int) -> str:
    return "1 module has" if count == 1 else f"{count} modules have"


def _lacking_siblings(adapter: Adapter) -> list[str]:
    """Modules without factors of a block that has some, where such a block has them elsewhere.

    Layers of one model may be of several kinds under one name, dense or of experts, say: blocks
    are compared that have a module in common. Some layers share their keys and values.
    """
    blocks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in adapter.modules:
        if module.layer is not None:
            block, _, name = module.projection.rpartition(".")
            blocks[block][module.layer].add(name)
    return [
        f"layer {layer}: {block}.{name}"
        for layer, block, name in sorted(
            (layer, block, name)
            for block, layers in blocks.items()
            for layer, lacking in _lacking(layers).items()
            for name in lacking
        )
    ]


def _lacking(layers: Mapping[int, set[str]]) -> dict[int, frozenset[str]]:
    """What a block lacks in each layer of what those have that share a module with it."""
    # There are many layers and experts, and few kinds of them.
    kinds = {layer: frozenset(names) for layer, names in layers.items()}
    having: dict[str, list[frozenset[str]]] = defaultdict(list)
    for kind in set(kinds.values()):
        for name in kind:
            having[name].append(kind)
    usual = {
        kind: frozenset[str]().union(*(one for name in kind for one in having[name]))
        for kind in set(kinds.values())
    }
    return {layer: usual[kind] - kind - _SHARED for layer, kind in kinds.items()}


def _magnitudes(adapter: Adapter, config: TrainingConfig) -> Iterator[Sign]:
    modules = len(adapter.modules)
    with_magnitude = sum(module.magnitude is not None for module in adapter.modules)
    without = modules - with_magnitude
    if config.fine_tune_type == "dora" and without:
        yield Sign(
            "dora-without-magnitude",
            f"The configuration says DoRA, and {without} of {modules} modules have no magnitude.",
            {"without": without, "modules": modules},
        )
    elif config.fine_tune_type == "lora" and with_magnitude:
        yield Sign(
            "magnitude-without-dora",
            f"{with_magnitude} modules have a DoRA magnitude, and the configuration says LoRA: a "
            "loader has no place for it.",
            {"with_magnitude": with_magnitude, "modules": modules},
        )


def _scale(config: TrainingConfig, base: BaseModel | None, limits: Limits) -> Iterator[Sign]:
    scale, rank = config.scale, config.rank
    if scale is None and config.origin == "own":
        return
    if scale is None:
        alpha = f" (it states alpha {config.alpha:g})" if config.alpha is not None else ""
        yield Sign(
            "scale-missing",
            f"The configuration states no scale for the update{alpha}, which mlx-lm requires.",
            {"alpha": config.alpha, "rank": rank},
            where=config.path.name,
        )
        return
    is_stated = config.origin == "mlx-lm" and not config.is_default("scale")
    if is_stated and rank and scale >= limits.alpha_from and scale / rank in limits.alpha_multiples:
        step = step_of(config, base, BandLimits())
        better = better_scale(scale, rank, config.learning_rate, step)
        yield Sign(
            "scale-looks-like-alpha",
            f"The scale of {scale:g} is {scale / rank:g} times the rank, as "
            "an alpha often is; mlx-lm multiplies by it without dividing by the rank.",
            {"scale": scale, "rank": rank, "advised_scale": better},
            where=config.path.name,
            expected=f"{better:g}, if {scale:g} was meant as alpha",
        )


def _against_base(adapter: Adapter, base: BaseModel) -> Iterator[Sign]:
    layers = base.num_layers
    beyond = [
        module
        for module in adapter.modules
        if layers is not None and module.layer is not None and module.layer >= layers
    ]
    if layers is not None and beyond:
        top = max(module.layer or 0 for module in beyond)
        yield Sign(
            "layer-out-of-range",
            f"{len(beyond)} modules belong to layers up to number {top}, and the base model has "
            f"{layers} layers, 0 to {layers - 1}.",
            {"modules": len(beyond), "layer": top, "base_layers": layers},
            where=_names(beyond),
            expected=f"layers below {layers}",
        )
    # By name: there may be a hundred thousand of them.
    apart = {module.name for module in beyond}
    rest = [module for module in adapter.modules if module.name not in apart]
    absent = [module for module in rest if base.module_for(module.name) is None]
    if absent:
        yield _absent(absent, len(rest), base)
    apart |= {module.name for module in absent}
    yield from _shapes([module for module in rest if module.name not in apart], base)


def _absent(absent: Sequence[LoraModule], compared: int, base: BaseModel) -> Sign:
    every = len(absent) == compared
    first = absent[0].name
    closest = base.closest_module(first)
    hint = f"; the closest name in the base model is {closest}" if closest else ""
    return Sign(
        "no-module-in-base" if every else "some-modules-not-in-base",
        f"{'None' if every else len(absent)} of the {compared} adapted modules "
        f"{'is' if every else 'are not'} in the base model, {first} for one{hint}: old loaders "
        "drop them silently, new ones refuse.",
        {"missing": len(absent), "modules": compared, "closest": closest},
        where=_names(absent),
        severity=Severity.ERROR if base.is_mlx else None,
        fix=None if closest else _NAME_THE_BASE,
    )


def _shapes(modules: Sequence[LoraModule], base: BaseModel) -> Iterator[Sign]:
    bad = [
        module
        for module in modules
        if (module.in_features, module.out_features) != base.linear_shapes.get(module.name)
        or (module.experts is not None and module.experts != base.shape(module.name)[0])
    ]
    if bad:
        first = bad[0]
        inputs, outputs = base.linear_shapes.get(first.name, (0, 0))
        yield Sign(
            "shape-mismatch",
            f"The factors of {len(bad)} of {len(modules)} modules do not fit the base model: "
            f"{first.name} maps {first.in_features} to {first.out_features}, and the weight "
            f"{inputs} to {outputs}.",
            {
                "modules": len(bad),
                "in": first.in_features,
                "out": first.out_features,
                "base_in": inputs,
                "base_out": outputs,
            },
            where=_names(bad),
            expected=f"{inputs} inputs and {outputs} outputs",
        )


def _names(modules: Sequence[LoraModule]) -> str:
    return some_of([module.name for module in modules])
