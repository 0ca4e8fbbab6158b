"""Whether the adapter fits its configuration and its base model.

What it finds. Factors of another rank than configured; layers or modules that were
configured and are not there; target keys that match nothing; modules that the base model
does not have, with the prefix in which the names differ; factors whose shape is not that
of the weight they change, or of any model; DoRA without its magnitudes, and the reverse; a
scale that is missing; no adapter_config.json at all.

Why it matters. Old loaders drop every name that they do not know without a word, so that
the base model answers; new ones refuse the adapter. A missing layer is training that
never happened. Without adapter_config.json no loader knows which layers to convert, or
by which scale: mlx-lm stops with a FileNotFoundError.

How it is measured. Names and shapes only, from the files' headers: nothing is loaded.
mlx-lm puts LoRA on the last `num_layers` layers and matches a key against the whole
name within the layer; PEFT matches the end of the name. Missing modules are an error either
where `mlx_lm.lora` itself wrote the configuration, or where the same module has factors in one
adapted layer and none in another: mlx-lm treats all its layers alike.
Target keys are an error where not one of them names a module of the base model: mlx-lm
then converts nothing, and refuses the adapter's tensors. Without a base model the sizes of
a block's modules are held against each other: what reads the same vector has the same
number of inputs in all of 79 architectures of mlx-lm, and what leads back to it as many
outputs.

When it is wrong. Base models that MLX did not write are renamed while they are loaded;
then a name that is not found is a warning only. What a custom trainer called its keys
may not be what mlx-lm would. A file that was named by itself may have its configuration
elsewhere, which is a note only.

What to do. Name the base model that the adapter was trained on. If the names differ by a
prefix, rename the tensors. If modules are missing, look at the keys and at num_layers. See
how tensors were named and turned round with `mlxdoctor inspect`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from mlxdoctor.check import DoesNotArise, Inconclusive, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.measure.weights.lora_targets import matches, missing_targets

#: What some models compute in one layer and use in others.
_SHARED = frozenset({"k_proj", "v_proj"})
#: q, k and v take the same input; gate and up widen it, and down leads back.
_SAME_INPUTS = ("q_proj", "k_proj", "v_proj")
_GATES, _BACK = ("gate_proj", "up_proj"), "down_proj"
_NAME_THE_BASE = "name the base model that the adapter was trained on"


@check(
    codes={
        "rank-mismatch": Symptom.error(
            "the factors have another rank than the configuration says",
            says="{modules} of {all_modules} modules have rank {ranks}, and the configuration says "
            "{configured}: a loader builds factors of another shape.",
            expected="rank {configured}",
            fix="put the rank of the tensors into the configuration that lies beside them",
        ),
        "missing-modules": Symptom.warning(
            "modules that the configuration names have no factors",
            says="[{missing} of the {expected} {what} that the configuration names have no factors|"
            "{missing:* module} without factors, although the same block has them in other "
            "layers].",
            expected="factors for [all {expected} {what}|the same modules in every layer]",
            fix="check keys and num_layers against the trainer that was used, and that every "
            "trainable parameter was saved",
        ),
        "no-configuration": Symptom.warning(
            "there is no adapter_config.json, without which nothing loads it",
            says=f"There is no {CONFIG_NAME} beside {{file}}: [{{rest}}|mlx-lm can't load the "
            "adapter, whose layers, rank and scale are unknown].",
            expected=f"{CONFIG_NAME} in the adapter's folder",
            fix=f"write {CONFIG_NAME} with fine_tune_type, num_layers and lora_parameters as they "
            "were in training, and save the weights as adapters.safetensors",
        ),
        "unmatched-key": Symptom.warning(
            "a target key of the configuration matches no adapted module",
            says="{count} of {all_keys} target keys match no adapted module[, {rest}]: {where}.",
            expected="every key names a module",
            fix="with mlx-lm write the name within the layer (self_attn.q_proj), not its last part",
        ),
        "modules-not-in-base": Symptom.warning(
            "the base model lacks adapted modules",
            says="{missing} of the {modules} adapted modules are not in the base model, {first} "
            "for one[; the closest name in the base model is {closest}]: old loaders drop them "
            "silently, new ones refuse.",
            expected="every adapted module is in the base model",
            fix="[rename the tensors to the base model's names; {closest} for one|"
            f"{_NAME_THE_BASE}]",
        ),
        "layer-out-of-range": Symptom.error(
            "the adapter changes layers that the base model does not have",
            says="{modules} modules belong to layers up to number {layer}, and the base model has "
            "{base_layers} layers, counted from 0.",
            expected="layers below {base_layers}",
            fix=_NAME_THE_BASE,
        ),
        "shape-mismatch": Symptom.error(
            "factors do not fit the weights they change",
            says="The factors of {modules} of {all_modules} modules do not fit the base model: "
            "{first} maps {in} to {out}, and the weight {base_in} to {base_out}.",
            expected="{base_in} inputs and {base_out} outputs",
            fix=_NAME_THE_BASE,
        ),
        "sizes-disagree": Symptom.error(
            "modules of one block have sizes that no model has",
            says="The sizes of {disagreeing} of {blocks} blocks do not go together: {sizes}.",
            expected="q_proj, k_proj and v_proj with the same inputs; gate_proj and up_proj alike",
            fix="see how the tensors were named and turned round; use a save of the trainer itself",
        ),
        "scale-missing": Symptom.error(
            "the configuration states no scale",
            says="The configuration states no scale for the update[ (it states alpha {alpha:g})], "
            "which mlx-lm requires.",
            expected="lora_parameters.scale, which is alpha / rank",
            fix="write scale: alpha / rank into lora_parameters",
        ),
        "dora-without-magnitude": Symptom.warning(
            "the configuration says DoRA and there are no magnitudes",
            says="The configuration says DoRA, and {without} of {modules} modules have no "
            "magnitude.",
            expected="a magnitude for every module",
            fix="save the magnitudes, or configure LoRA",
        ),
        "magnitude-without-dora": Symptom.warning(
            "there are magnitudes and the configuration does not say DoRA",
            says="{with_magnitude} modules have a DoRA magnitude, and the configuration says LoRA: "
            "a loader has no place for it.",
            expected="no magnitudes",
            fix="set fine_tune_type to dora in the configuration beside the adapter",
        ),
    },
    rerun_symptom=True,
)
def adapter_structure(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign | Unsought]:
    """Compare names and shapes of adapter, configuration and base model."""
    if config is not None and config.fine_tune_type == "full":
        raise DoesNotArise("a full fine-tune has no LoRA factors")
    if not adapter.modules and not adapter.mismatched:
        raise NotApplicable("the adapter holds no pair of LoRA factors that could be compared")
    yield from _block_sizes(adapter)
    if (config is None or config.path.name != CONFIG_NAME) and not adapter.has_configuration:
        yield _no_configuration(adapter)
    if base is None:
        against = ("modules-not-in-base", "layer-out-of-range")
        why = "the base model is not at hand; name its folder with --base"
        yield Unsought((*against, "shape-mismatch"), why)
    if config is None and base is None:
        raise Inconclusive("there is neither a configuration nor a base model to compare with")
    if config is not None:
        yield from _ranks(adapter, config)
        yield from _unmatched(adapter, config, base)
        yield from _missing(adapter, config, base)
        without = sum(module.magnitude is None for module in adapter.modules)
        if config.fine_tune_type == "dora" and without:
            yield Sign(
                "dora-without-magnitude", {"without": without, "modules": len(adapter.modules)}
            )
        elif config.fine_tune_type == "lora" and without < len(adapter.modules):
            yield Sign("magnitude-without-dora", {"with_magnitude": len(adapter.modules) - without})
        if config.scale is None:
            figures = {"alpha": config.alpha, "rank": config.rank}
            yield Sign("scale-missing", figures, where=config.path.name)
    if base is not None and adapter.modules:
        yield from _against_base(adapter, base)


def _no_configuration(adapter: Adapter) -> Sign:
    name = adapter.path.name
    rest = "mlx-lm loads a folder that has both" if adapter.is_loose else None
    return Sign(
        "no-configuration",
        {"file": name, "modules": len(adapter.modules), "rest": rest},
        where=name,
        severity=Severity.INFO if adapter.is_loose else None,
    )


def _ranks(adapter: Adapter, config: TrainingConfig) -> Iterator[Sign]:
    rank = config.rank
    if rank is None or config.is_default("rank"):
        return
    own = config.values.get("rank_pattern")
    patterns = tuple(own) if isinstance(own, dict) else ()
    others = [
        module
        for module in adapter.modules
        if module.rank != rank and not module.name.endswith(patterns)
    ]
    if others:
        measured: dict[str, Measurement] = {
            "modules": len(others),
            "all_modules": len(adapter.modules),
            "ranks": tuple(sorted({module.rank for module in others})),
            "configured": rank,
        }
        yield Sign("rank-mismatch", measured, where=_names(others))


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
    nothing_matches = in_base == [] and not matched
    # The names in files that MLX did not write are not those that a key is compared with.
    certain = nothing_matches and base is not None and base.is_mlx
    measured: dict[str, Measurement] = {
        "keys": tuple(unmatched),
        "count": len(unmatched),
        "all_keys": len(keys),
        "in_base": len(in_base) if in_base is not None else None,
        "rest": "nor any module of the base model, so that nothing is converted"
        if nothing_matches
        else None,
    }
    severity = Severity.ERROR if certain else None
    yield Sign("unmatched-key", measured, where=some_of(unmatched), severity=severity)


def _missing(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    if base is not None and (absent := missing_targets(adapter, config, base)) is not None:
        # Factors under names that the base does not know may be those that are missing.
        strangers = any(base.module_for(module.name) is None for module in adapter.modules)
        if 0 < len(absent.names) < absent.expected and not strangers:
            yield Sign(
                "missing-modules",
                {"missing": len(absent.names), "expected": absent.expected, "what": "modules"},
                where=some_of(absent.names),
                severity=Severity.ERROR if absent.is_certain else None,
            )
        return
    if lacking := _lacking_siblings(adapter):
        expected = len(adapter.modules) + len(lacking)
        measured: dict[str, Measurement] = {
            "missing": len(lacking),
            "expected": expected,
            "what": None,
        }
        yield Sign("missing-modules", measured, where=some_of(lacking))
        return
    layers = {module.layer for module in adapter.modules if module.layer is not None}
    wanted = config.num_layers
    if wanted is not None and not config.is_default("num_layers") and 0 < len(layers) < wanted:
        yield Sign(
            "missing-modules",
            {"missing": wanted - len(layers), "expected": wanted, "what": "layers"},
        )


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
        kind: frozenset[str]().union(*(other for name in kind for other in having[name]))
        for kind in set(kinds.values())
    }
    return {layer: usual[kind] - kind - _SHARED for layer, kind in kinds.items()}


def _block_sizes(adapter: Adapter) -> Iterator[Sign]:
    """Blocks whose modules' sizes do not go together, whatever the base model is."""
    blocks: dict[str, dict[str, LoraModule]] = defaultdict(dict)
    for module in adapter.modules:
        block, _, name = module.name.rpartition(".")
        blocks[block][name] = module
    odd = [(block, names) for block, modules in blocks.items() if (names := _disagreeing(modules))]
    if not odd:
        return
    block, names = odd[0]
    sizes = tuple(
        f"{module.name} maps {module.in_features} to {module.out_features}"
        for module in (blocks[block][name] for name in names)
    )
    measured: dict[str, Measurement] = {
        "disagreeing": len(odd),
        "blocks": len(blocks),
        "sizes": sizes,
    }
    yield Sign("sizes-disagree", measured, where=some_of([block for block, _ in odd]))


def _disagreeing(modules: Mapping[str, LoraModule]) -> tuple[str, ...]:
    """The names among a block's modules that do not go together; none where all do."""
    readers = tuple(name for name in _SAME_INPUTS if name in modules)
    if len({modules[name].in_features for name in readers}) > 1:
        return readers
    gates = tuple(name for name in _GATES if name in modules)
    sizes = {(modules[name].in_features, modules[name].out_features) for name in gates}
    if gates and _BACK in modules:
        sizes.add((modules[_BACK].out_features, modules[_BACK].in_features))
        gates = (*gates, _BACK)
    return gates if len(sizes) > 1 else ()


def _against_base(adapter: Adapter, base: BaseModel) -> Iterator[Sign]:
    layers = base.num_layers
    beyond = [
        module
        for module in adapter.modules
        if layers is not None and module.layer is not None and module.layer >= layers
    ]
    if beyond:
        top = max(module.layer or 0 for module in beyond)
        measured: dict[str, Measurement] = {
            "modules": len(beyond),
            "layer": top,
            "base_layers": layers,
        }
        yield Sign("layer-out-of-range", measured, where=_names(beyond))
    # By name: there may be a hundred thousand of them.
    apart = {module.name for module in beyond}
    rest = [module for module in adapter.modules if module.name not in apart]
    absent = [module for module in rest if base.module_for(module.name) is None]
    if absent:
        yield Sign(
            "modules-not-in-base",
            {
                "missing": len(absent),
                "modules": len(rest),
                "first": absent[0].name,
                "closest": base.closest_module(absent[0].name),
            },
            where=_names(absent),
            severity=Severity.ERROR if base.is_mlx else None,
        )
    apart |= {module.name for module in absent}
    yield from _shapes([module for module in rest if module.name not in apart], base)


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
        measured: dict[str, Measurement] = {
            "modules": len(bad),
            "all_modules": len(modules),
            "first": first.name,
            "in": first.in_features,
            "out": first.out_features,
            "base_in": inputs,
            "base_out": outputs,
        }
        yield Sign("shape-mismatch", measured, where=_names(bad))


def _names(modules: Sequence[LoraModule]) -> str:
    return some_of([module.name for module in modules])
