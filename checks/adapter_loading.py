"""Whether mlx-lm can load the adapter, and whether it then has an effect.

What it finds. A configuration that mlx-lm stops at: a setting of the wrong type, `num_layers`
or `keys` that leave out layers the file has factors for, tensors that are no adapter's; a scale
of zero, below zero or without a value; an adapter in PEFT's format or under another file name;
names that no architecture of mlx-lm has.

Why it matters. mlx-lm 0.32.2 refuses such an adapter when it is served; releases before it drop
what they do not know, and the base model answers. A scale of zero does the same in all of them.

How it is measured. What `load_adapters` does (mlx-lm 0.32.2, `tuner/utils.py`) is followed with
the configuration and the names, types and shapes in the file's header; nothing is loaded. Where
the base model is not at hand, the last `num_layers` layers are as many as the file may have, and
the names are compared with those of all architectures that mlx-lm has.

When it is wrong. A trainer of one's own may load its adapters in its own way. An architecture
that came after mlx-lm's release has names that are not known here, which is a warning only.

What to do. Write the configuration as it was in training; rename or convert the tensors
(`mlxdoctor convert`); then load it once with mlx-lm.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from mlxdoctor.check import DoesNotArise, NotApplicable, check
from mlxdoctor.evidence.adapter import FILE_NAMES, Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CHECKPOINT_NAME
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.safety.errors import InputError

#: The file that mlx-lm reads.
_FILE = FILE_NAMES[0]
#: The number of a layer, or of a block, in a module's name.
_NUMBER = re.compile(r"\.\d+\.")
_LEAVES = frozenset({"lora_a", "lora_b", "m"})
_CORRECT = "write the setting as it was in training, and load the adapter once with mlx-lm"


@check(
    codes={
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
        "scale-negative": Symptom.error(
            "the scale is negative, as no trainer sets it",
            says="The scale is {scale:g}: the update is subtracted, unless it was trained with "
            "that.",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "scale-not-finite": Symptom.error(
            "the scale is no number: every output is NaN",
            says="The scale is {scale}: the update, and every output with it, is no number.",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "another-format": Symptom.warning(
            "mlx-lm can't load the adapter as it is",
            says="{where} is an adapter in PEFT's format, which mlx-lm does not load.",
            expected=f"{_FILE} with mlx-lm's names, and its {CONFIG_NAME}",
            fix="convert it with `mlxdoctor convert`",
        ),
        "another-file-name": Symptom.warning(
            "mlx-lm loads an adapter under one file name only, and this has another",
            says=f"The adapter is called {{where}}, and mlx-lm looks for {_FILE}.",
            expected=_FILE,
            fix=f"rename the file to {_FILE}",
        ),
        "unknown-names": Symptom.warning(
            "no architecture of mlx-lm has modules of these names",
            says="[{stacked} of {modules} modules have names that only stacked experts have in "
            "mlx-lm, such as {example}, and factors of one matrix|{unknown} of {modules} modules "
            "have names that no architecture of mlx-lm has, such as {example}|No architecture of "
            "mlx-lm has modules of all of the {modules} names]: unless the base model is of "
            "another kind, they are not loaded.",
            expected="names of the base model's modules",
            fix="rename the tensors to the base model's names",
        ),
    },
)
def adapter_loading(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign]:
    """Follow mlx-lm's loading, without doing it."""
    name = adapter.path.name
    if adapter.naming == "peft" or (config is not None and config.origin == "peft"):
        yield Sign("another-format", {"modules": len(adapter.modules)}, where=name)
        return
    if not adapter.modules:
        raise DoesNotArise("the file holds no pair of LoRA factors")
    if not (adapter.is_loose or name == _FILE or CHECKPOINT_NAME.match(name)):
        yield Sign("another-file-name", {"file": name}, where=name)
    if base is None:
        yield from _names(adapter)
    config = _beside(adapter)
    if config.origin != "mlx-lm":
        raise NotApplicable("the configuration is that of a trainer that loads it in its own way")
    stopped = list(_settings(config.values))
    for key, problem in stopped:
        # Releases before 0.32 loaded this one.
        severity = Severity.WARNING if key == "lora_layers" else None
        measured: dict[str, Measurement] = {"key": key, "problem": problem}
        yield Sign("setting-refused", measured, where=key, severity=severity)
    if not any(key != "lora_layers" for key, _ in stopped):
        yield from _effect(config.values["lora_parameters"].get("scale"))
        for names, reason in _refused(adapter, config, base):
            measured = {
                "examples": some_of(names, 2),
                "refused": len(names),
                "tensors": max(len(adapter.modules), len(names)),
                "reason": reason,
            }
            yield Sign("tensors-refused", measured, where=some_of(names))


def _beside(adapter: Adapter) -> TrainingConfig:
    """What lies beside the file, without what another one says of training."""
    try:
        config = TrainingConfig.beside(adapter.path)
    except InputError as error:
        raise NotApplicable(f"its configuration can't be read: {error.problem}") from None
    if config is None:
        raise NotApplicable(f"there is no {CONFIG_NAME} beside it")
    return config


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings at which mlx-lm stops: the key, and what is wrong, as a clause."""
    layers, lora = values.get("num_layers"), values.get("lora_parameters")
    if "num_layers" not in values and _is_whole(values.get("lora_layers")):
        yield "lora_layers", "has lora_layers, as old releases wrote it, and no num_layers"
    elif not _is_whole(layers):
        yield "num_layers", f"says {_shown(layers)} for num_layers, where a whole number is needed"
    if not isinstance(lora, Mapping):
        stated = f"says {_shown(lora)} for lora_parameters" if lora is not None else "has none"
        yield "lora_parameters", f"{stated}, where rank, scale and dropout are needed"
        return
    for key, is_right, needed in (
        ("rank", lambda value: _is_whole(value) and value > 0, "a whole number above zero"),
        ("scale", _is_number, "a number"),
        (
            "dropout",
            lambda value: _is_number(value) and 0 <= value < 1,
            "a number from 0 to below 1",
        ),
    ):
        # A scale that is not there has a finding of its own.
        if not is_right(lora.get(key)) and not (key == "scale" and key not in lora):
            what = f"says {_shown(lora[key])} for {key}" if key in lora else f"has no {key}"
            yield f"lora_parameters.{key}", f"{what}, where {needed} is needed"
    keys = lora.get("keys")
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(value, str) for value in keys)
    ):
        yield "lora_parameters.keys", f"says {_shown(keys)} for keys, where a list is needed"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _shown(value: object) -> str:
    """A value as JSON has it, cut short."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _effect(scale: float | None) -> Iterator[Sign]:
    if scale is None or (scale > 0 and math.isfinite(scale)):
        return
    code = "scale-zero" if scale == 0 else "scale-negative"
    code = code if math.isfinite(scale) else "scale-not-finite"
    yield Sign(code, {"scale": scale}, where="lora_parameters.scale")


def _refused(
    adapter: Adapter, config: TrainingConfig, base: BaseModel | None
) -> Iterator[tuple[list[str], str]]:
    """The tensors that mlx-lm has no place for, and why."""
    if config.fine_tune_type == "full":
        yield list(adapter.tensors), "the configuration says a full fine-tune"
        return
    if unread := [tensor.name for tensor in adapter.tensors.values() if tensor.dtype == "F64"]:
        yield unread, "they are stored as 64-bit numbers, which MLX does not read"
        return
    is_dora = config.values.get("fine_tune_type") == "dora"
    layers = sorted({module.layer for module in adapter.modules if module.layer is not None})
    count, keys = config.num_layers or 0, config.values["lora_parameters"].get("keys")
    # Of an unknown model its last layer may be the last that is there.
    total = base.num_layers if base is not None else None
    first = (total or layers[-1] + 1) - count if layers and count > 0 else 0
    modules = [(module.name, module) for module in adapter.modules]
    reasons = {
        "they are no adapter's parameters": [
            tensor.name
            for tensor in adapter.others
            if tensor.name.rpartition(".")[2] not in _LEAVES
        ],
        "fine_tune_type is not dora, so that nothing is scaled": [
            name for name in adapter.tensors if name.endswith(".m") and not is_dora
        ],
        "fine_tune_type is dora, which it has not for experts": [
            name for name, module in modules if is_dora and module.experts is not None
        ],
        f"num_layers is {count}, and earlier layers are not converted": [
            name
            for name, module in modules
            # A whole name is looked up in the whole model.
            if module.layer is not None and module.layer < first and name not in (keys or ())
        ],
        "without keys only modules of layers are converted": [
            name for name, _ in modules if keys is None and not _NUMBER.search(name)
        ],
        "keys does not name them": [
            name
            for name, _ in modules
            if keys is not None and not any(matches(key, name, config) for key in keys)
        ],
    }
    yield from ((names, reason) for reason, names in reasons.items() if names)


@cache
def _known() -> tuple[Mapping[str, frozenset[str]], frozenset[str]]:
    """What modules are called, `#` for a number -> the architectures that have one of that name.

    And the names that are those of experts, stacked in one tensor, wherever they occur.
    """
    text = (resources.files("mlxdoctor") / "evidence" / "module_names.json").read_text("utf-8")
    values = json.loads(text)
    names = {name: frozenset(found) for name, found in values["names"].items()}
    return names, frozenset(values["experts"])


def _names(adapter: Adapter) -> Iterator[Sign]:
    """Whether one architecture has modules of all these names; the base itself would know."""
    known, experts = _known()
    patterns = [(module, re.sub(r"\.\d+(?=\.|$)", ".#", module.name)) for module in adapter.modules]
    stacked = [
        module.name for module, name in patterns if name in experts and module.experts is None
    ]
    strange = [module.name for module, name in patterns if name not in known]
    in_common = not strange and frozenset.intersection(*(known[name] for _, name in patterns))
    if not stacked and in_common:
        return
    names = stacked or strange or [module.name for module, _ in patterns]
    measured = {
        "modules": len(patterns),
        "stacked": len(stacked) or None,
        "unknown": len(strange) or None,
        "example": names[0] if stacked or strange else None,
    }
    yield Sign("unknown-names", measured, where=some_of(names))
