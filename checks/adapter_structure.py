"""Whether the adapter fits its configuration and its base model, and mlx-lm can load it.

What it finds. A configuration, file name or format that mlx-lm stops at, and tensors that do not
fit the configuration, the base model or each other: missing, misnamed, of another shape.

Why it matters. mlx-lm 0.32.2 refuses such an adapter when it is served; releases before it drop
what they do not know without a word, and the base model answers. A missing layer is training that
never happened. A scale of zero gives the base model's answers in all of them.

How it is measured. Names, types and shapes only, from the files' headers: nothing is loaded. What
`load_adapters` does (mlx-lm 0.32.2, `tuner/utils.py`) is followed with the configuration that lies
beside the file. mlx-lm puts LoRA on the last `num_layers` layers and matches a key against the
whole name within the layer; PEFT matches the end of the name. Missing modules are an error either
where `mlx_lm.lora` itself wrote the configuration, or where the same module has factors in one
adapted layer and none in another: mlx-lm treats all its layers alike. Without a base model the
last `num_layers` layers are as many as the file may have, and the sizes of a block's modules are
held against each other: what reads the same vector has the same number of inputs in all of 79
architectures, and what leads back to it as many outputs.

When it is wrong. Base models that MLX did not write are renamed while they are loaded; then a name
that is not found is a warning only. A trainer of one's own may load its adapters in its own way. A
file that was named by itself may have its configuration elsewhere, which is a note only.

What to do. Name the base model that the adapter was trained on. Write the configuration as it was
in training; rename or convert the tensors (`mlxdoctor convert`), which `mlxdoctor inspect` shows;
then load it once with mlx-lm.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from mlxdoctor.check import DoesNotArise, Inconclusive, NotApplicable, check
from mlxdoctor.evidence.adapter import FILE_NAMES, PRUNED, Adapter, LoraModule, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.run_files import CHECKPOINT_NAME
from mlxdoctor.evidence.source import MARKED
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.measure.weights.lora_targets import (
    by_mlx_lm,
    refused_settings,
    refused_tensors,
    target_modules,
    unmatched_keys,
)
from mlxdoctor.safety.errors import InputError

#: The file that mlx-lm reads.
_FILE = FILE_NAMES[0]
_CORRECT = "write the value that was used in training, then load the adapter with mlx-lm as a check"
#: Modules of a block whose sizes must agree, with the side that must: q, k and v have the same
#: input; gate and up have the same input and output, and down has these turned round.
_SIDES = (
    {"q_proj": "in_features", "k_proj": "in_features", "v_proj": "in_features"},
    {"gate_proj": "in_features", "up_proj": "in_features", "down_proj": "out_features"},
    {"gate_proj": "out_features", "up_proj": "out_features", "down_proj": "in_features"},
)
#: Ending of modules that are linear layers in all architectures; others may be bare parameters.
_LINEAR = "_proj"
#: A module as llama.cpp names it.
_GGUF = re.compile(r"blk\.\d+\.")
_NAME_THE_BASE = "name the base model that the adapter was trained on"


@check(
    codes={
        "missing-modules": Symptom.warning(
            "modules that the configuration names have no factors",
            says="{missing} of the {expected} {what} that the configuration names have no factors.",
            expected="factors for all {expected} {what}",
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
        "shape-mismatch": Symptom.error(
            "factors do not fit the weights they change",
            says="[{beyond} modules belong to layers up to number {layer}, and the base model has "
            "{base_layers} layers, counted from 0|The factors of {modules} of {all_modules} "
            "modules do not fit the base model: {first} maps {in} to {out}, and the weight "
            "{base_in} to {base_out}].",
            expected="[layers below {base_layers}|{base_in} inputs and {base_out} outputs]",
            fix=_NAME_THE_BASE,
        ),
        "sizes-disagree": Symptom.error(
            "modules of one block have sizes that no model has",
            says="The sizes of {disagreeing} of {blocks} blocks do not go together: {sizes}.",
            expected="q_proj, k_proj and v_proj with the same inputs; gate_proj and up_proj alike",
            fix="check how the tensors were renamed or transposed, or use a file that the trainer "
            "itself saved",
        ),
        "dora-without-magnitude": Symptom.warning(
            "the configuration says DoRA and there are no magnitudes",
            says="The configuration says DoRA, and {without} of {modules} modules have no "
            "magnitude.",
            expected="a magnitude for every module",
            fix="save the magnitudes, or configure LoRA",
        ),
        "setting-refused": Symptom.error(
            "mlx-lm stops at a setting of the configuration",
            says=f"{CONFIG_NAME} {{problem}}: mlx-lm stops there.",
            expected="whole numbers for num_layers and rank, numbers for scale and dropout",
            fix=_CORRECT,
        ),
        "tensors-refused": Symptom.error(
            "mlx-lm has no place for tensors of the file, and refuses the adapter",
            says="mlx-lm refuses {examples} ({refused} of {tensors}): {reason}.",
            expected="only factors of the layers that the configuration converts",
            fix="correct num_layers and keys, or leave out what is no adapter's tensor",
        ),
        "scale-zero": Symptom.error(
            "the scale is zero: the adapter has no effect at all",
            says="The scale is {scale:g}: mlx-lm adds nothing of the update to the weights.",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "scale-impossible": Symptom.error(
            "the scale is negative, NaN or infinite, as no trainer sets it",
            says="The scale is {scale:g}: [{effect}|the update is subtracted, unless the adapter "
            "was trained with this scale].",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "another-format": Symptom.warning(
            "mlx-lm can't load the file as it is",
            says="[{peft} is an adapter in PEFT's format, which mlx-lm does not load|Modules have "
            "the names of a GGUF file ({gguf}), which mlx-lm does not know|The adapter is called "
            f"{{file}}, and mlx-lm looks for {_FILE}].",
            expected=f"{_FILE} with mlx-lm's names, and its {CONFIG_NAME}",
            fix="[give the modules their names in the base model, as {gguf_as}: GGUF files also "
            f"turn the factors round|convert it with `mlxdoctor convert`, or call it {_FILE}]",
        ),
    },
    rerun_symptom=True,
)
def adapter_structure(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign | Unsought]:
    named = (*(module.name for module in adapter.modules), *adapter.mismatched)
    if gguf := next(filter(_GGUF.match, named), None):
        example = "model.layers.0.self_attn.q_proj"
        names = {"gguf": gguf, "gguf_as": example}
        yield Sign("another-format", names, adapter.path.name, severity=Severity.ERROR)
        return
    if adapter.modules:
        yield from _as_mlx_lm_loads(adapter, config, base)
    if config is not None and config.fine_tune_type == "full":
        raise DoesNotArise("a full fine-tune has no LoRA factors")
    if not adapter.modules and not adapter.mismatched:
        raise NotApplicable("the adapter holds no pair of LoRA factors that could be compared")
    yield from _block_sizes(adapter)
    has_file = (adapter.path.parent / CONFIG_NAME).is_file()
    if (config is None or config.path.name != CONFIG_NAME) and not has_file:
        name, is_loose = adapter.path.name, adapter.is_loose
        rest = "mlx-lm loads a folder that has both" if is_loose else None
        figures: dict[str, Measurement] = {"file": name, "modules": len(adapter.modules)}
        severity = Severity.INFO if is_loose else None
        yield Sign("no-configuration", {**figures, "rest": rest}, where=name, severity=severity)
    if base is None:
        against = ("modules-not-in-base", "shape-mismatch")
        yield Unsought(against, "the base model is not at hand; name its folder with --base")
    if config is None and base is None:
        raise Inconclusive("there is neither a configuration nor a base model to compare with")
    if config is not None:
        yield from _unmatched(adapter, config, base)
        yield from _missing(adapter, config, base)
        without = sum(module.magnitude is None for module in adapter.modules)
        if config.fine_tune_type == "dora" and without:
            counts = {"without": without, "modules": len(adapter.modules)}
            yield Sign("dora-without-magnitude", counts)
    if base is not None:
        yield from _against_base(adapter.modules, base)


def _as_mlx_lm_loads(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign]:
    """What mlx-lm would refuse when it loads the adapter."""
    name = adapter.path.name
    if adapter.naming == "peft" or (config is not None and config.origin == "peft"):
        yield Sign("another-format", {"peft": name}, where=name)
        return
    if not (adapter.is_loose or name == _FILE or CHECKPOINT_NAME.match(name)):
        yield Sign("another-format", {"file": name}, where=name)
    try:
        # mlx-lm reads the configuration beside the adapter, and no other.
        beside = TrainingConfig.beside(adapter.path)
    except InputError:
        return
    if beside is None or beside.origin != "mlx-lm":
        return
    if (note := beside.sources[0].note).startswith(MARKED):
        yield Sign("setting-refused", {"problem": f"{note}: it has to be plain UTF-8"})
    refused = dict(refused_settings(beside.values))
    for key, problem in refused.items():
        # Releases before 0.32 accept lora_layers.
        severity = Severity.WARNING if key == "lora_layers" else None
        yield Sign("setting-refused", {"problem": problem}, where=key, severity=severity)
    if refused.keys() - {"lora_layers"}:
        return
    scale, place = beside.values["lora_parameters"]["scale"], "lora_parameters.scale"
    if scale == 0:
        yield Sign("scale-zero", {"scale": scale}, where=place)
    elif not 0 < scale < math.inf:
        effect = None if math.isfinite(scale) else "every output is NaN or infinite"
        yield Sign("scale-impossible", {"scale": scale, "effect": effect}, where=place)
    for names, reason in refused_tensors(adapter, beside, base):
        counts = {"refused": len(names), "tensors": max(len(adapter.modules), len(names))}
        shown = {"examples": some_of(names, 2), "reason": reason}
        yield Sign("tensors-refused", {**counts, **shown}, where=some_of(names))


def _unmatched(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    keys = config.keys or ()
    unmatched = unmatched_keys(config, [module.name for module in adapter.modules])
    is_pattern = config.origin == "peft" and isinstance(config.values.get("target_modules"), str)
    if not unmatched or is_pattern:
        return
    nothing_matches = base is not None and len(unmatched) == len(keys) == len(
        unmatched_keys(config, base.linear_shapes)
    )
    rest = "nor any module of the base model, so that nothing is converted"
    figures: dict[str, Measurement] = {"keys": tuple(unmatched), "count": len(unmatched)}
    figures |= {"all_keys": len(keys), "rest": rest if nothing_matches else None}
    # mlx-lm renames the modules of files that MLX did not write, and then compares the keys.
    is_certain = nothing_matches and base is not None and base.is_mlx
    severity = Severity.ERROR if is_certain else None
    yield Sign("unmatched-key", figures, where=some_of(unmatched), severity=severity)


def _missing(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    """Modules without factors that are configured, or whole layers."""
    names: list[str] = []
    what, is_certain = "modules", False
    targets = target_modules(config, base) if base is not None else None
    if base is not None and targets is not None:
        names, expected, is_certain = _missing_targets(targets, adapter, config, base)
        # Factors with names that the base does not have may be the missing ones.
        are_strange = any(not base.shape(module.name) for module in adapter.modules)
        missing = 0 if are_strange or len(names) == expected else len(names)
    else:
        layers = {module.layer for module in adapter.modules} - {None}
        what, expected = "layers", 0 if config.is_default("num_layers") else config.num_layers or 0
        missing = max(expected - len(layers), 0) if layers else 0
    if missing:
        figures: dict[str, Measurement] = {"missing": missing, "expected": expected, "what": what}
        severity = Severity.ERROR if is_certain and missing >= PRUNED * expected else None
        yield Sign("missing-modules", figures, some_of(names) or None, severity=severity)


def _missing_targets(
    targets: Sequence[str], adapter: Adapter, config: TrainingConfig, base: BaseModel
) -> tuple[list[str], int, bool]:
    """Configured modules without factors, how many are configured, and whether that is certain.

    It is certain that factors were trained and lost if MLX wrote the base, and `mlx_lm.lora` the
    configuration or a module has factors in one adapted layer and none in another, which no
    trainer chooses.
    """
    kinds = {module.projection for module in adapter.modules}
    layers = {module.layer for module in adapter.modules}
    is_written = by_mlx_lm(config)
    if config.keys is None:
        # Without keys the trainer chose the kinds of modules: those in the adapter are expected.
        targets = [
            name
            for name in targets
            if layer_of(name)[1] in kinds or (is_written and name.endswith(_LINEAR))
        ]
    missing = sorted(set(targets) - {module.name for module in adapter.modules})
    are_scattered = any(layer in layers and kind in kinds for layer, kind in map(layer_of, missing))
    is_of_mlx = config.origin == "mlx-lm" and base.is_mlx
    return missing, len(targets), is_of_mlx and (is_written or are_scattered)


def _block_sizes(adapter: Adapter) -> Iterator[Sign]:
    """Blocks whose modules' sizes disagree, whatever the base model is."""
    blocks: dict[str, dict[str, LoraModule]] = defaultdict(dict)
    for module in adapter.modules:
        block, _, name = module.name.rpartition(".")
        blocks[block][name] = module
    disagreeing: dict[str, list[LoraModule]] = {}
    for block, modules in blocks.items():
        for sides in _SIDES:
            present = {name: side for name, side in sides.items() if name in modules}
            if len({getattr(modules[name], side) for name, side in present.items()}) > 1:
                disagreeing.setdefault(block, [modules[name] for name in present])
    if disagreeing:
        sizes = tuple(
            f"{module.name} maps {module.in_features} to {module.out_features}"
            for module in next(iter(disagreeing.values()))
        )
        counts = {"disagreeing": len(disagreeing), "blocks": len(blocks)}
        yield Sign("sizes-disagree", {**counts, "sizes": sizes}, where=some_of(list(disagreeing)))


def _against_base(modules: Sequence[LoraModule], base: BaseModel) -> Iterator[Sign]:
    """Modules with a layer, a name or a shape that the base does not have."""
    layers = math.inf if base.num_layers is None else base.num_layers
    beyond = [module for module in modules if (module.layer or 0) >= layers]
    within = [module for module in modules if (module.layer or 0) < layers]
    absent = [module for module in within if not base.shape(module.name)]
    present = [module for module in within if base.shape(module.name)]
    misshapen = [
        module
        for module in present
        if (module.in_features, module.out_features) != base.linear_shapes.get(module.name)
        or (module.experts is not None and module.experts != base.shape(module.name)[0])
    ]
    if beyond:
        layers_of = {"layer": max(module.layer or 0 for module in beyond), "base_layers": layers}
        yield Sign("shape-mismatch", {"beyond": len(beyond), **layers_of}, _named(beyond))
    if absent:
        counts = {"missing": len(absent), "modules": len(within)}
        alike = get_close_matches(absent[0].name, base.linear_shapes, n=1)
        names = {"first": absent[0].name, "closest": next(iter(alike), None)}
        severity = Severity.ERROR if base.is_mlx else None
        figures: dict[str, Measurement] = {**counts, **names}
        yield Sign("modules-not-in-base", figures, _named(absent), severity=severity)
    if misshapen:
        first = misshapen[0]
        inputs, outputs = base.linear_shapes.get(first.name, (0, 0))
        counts = {"modules": len(misshapen), "all_modules": len(present)}
        sizes = {"in": first.in_features, "out": first.out_features}
        figures = {**counts, **sizes, "base_in": inputs, "base_out": outputs, "first": first.name}
        yield Sign("shape-mismatch", figures, _named(misshapen))


def _named(modules: Sequence[LoraModule]) -> str:
    return some_of([module.name for module in modules])
