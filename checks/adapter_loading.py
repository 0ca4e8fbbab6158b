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
from mlxdoctor.finding import Severity, Sign, Symptom, some_of
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
            expected="whole numbers for num_layers and rank, numbers for scale and dropout",
            fix=_CORRECT,
        ),
        "tensors-refused": Symptom.error(
            "mlx-lm has no place for tensors of the file, and refuses the adapter",
            expected="only factors of the layers that the configuration converts",
            fix="correct num_layers and keys, or leave out what is no adapter's tensor",
        ),
        "scale-zero": Symptom.error(
            "the scale is zero: the adapter has no effect at all",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "scale-negative": Symptom.error(
            "the scale is negative, as no trainer sets it",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "scale-not-finite": Symptom.error(
            "the scale is no number: every output is NaN",
            expected="the scale that it was trained with",
            fix=_CORRECT,
        ),
        "another-format": Symptom.warning(
            "mlx-lm can't load the adapter as it is",
            expected=f"{_FILE} with mlx-lm's names, and its {CONFIG_NAME}",
            fix="convert it with `mlxdoctor convert`",
        ),
        "another-file-name": Symptom.warning(
            "mlx-lm loads an adapter under one file name only, and this has another",
            expected=_FILE,
            fix=f"rename the file to {_FILE}",
        ),
        "unknown-names": Symptom.warning(
            "no architecture of mlx-lm has modules of these names",
            expected="names of the base model's modules",
            fix="rename the tensors to the base model's names",
        ),
    },
)
def adapter_loading(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign]:
    """Follow mlx-lm's loading, without doing it."""
    is_peft = adapter.naming == "peft" or (config is not None and config.origin == "peft")
    if is_peft:
        yield Sign(
            "another-format",
            f"{adapter.path.name} is an adapter in PEFT's format, which mlx-lm does not load.",
            {"modules": len(adapter.modules)},
            where=adapter.path.name,
        )
        return
    if not adapter.modules:
        raise DoesNotArise("the file holds no pair of LoRA factors")
    yield from _file_name(adapter)
    if base is None:
        yield from _names(adapter)
    config = _own(adapter)
    if config.origin != "mlx-lm":
        raise NotApplicable("the configuration is that of a trainer that loads it in its own way")
    stopped = list(_settings(config.values))
    for key, problem in stopped:
        yield Sign(
            "setting-refused",
            f"{CONFIG_NAME} {problem}: mlx-lm stops there.",
            {"key": key},
            where=key,
        )
    if _says_lora_layers(config.values):
        yield Sign(
            "setting-refused",
            f"{CONFIG_NAME} has lora_layers, as old releases of mlx-lm wrote it, and no "
            "num_layers, without which mlx-lm 0.32.2 does not load the adapter.",
            {"key": "num_layers"},
            where="num_layers",
            severity=Severity.WARNING,
            fix="call it num_layers",
        )
    if not stopped:
        yield from _effect(config)
        yield from _tensors(adapter, config, base)


def _own(adapter: Adapter) -> TrainingConfig:
    """What lies beside the file, without what another one says of training."""
    try:
        found = TrainingConfig.beside(adapter.path)
    except InputError as error:
        raise NotApplicable(f"its configuration can't be read: {error.problem}") from None
    if found is None:
        raise NotApplicable(f"there is no {CONFIG_NAME} beside it")
    return found


def _says_lora_layers(values: Mapping[str, Any]) -> bool:
    return "num_layers" not in values and _is_whole(values.get("lora_layers"))


def _file_name(adapter: Adapter) -> Iterator[Sign]:
    name = adapter.path.name
    if adapter.is_loose or name == _FILE or CHECKPOINT_NAME.match(name):
        return
    yield Sign(
        "another-file-name",
        f"The adapter is called {name}, and mlx-lm looks for {_FILE}.",
        {"file": name},
        where=name,
    )


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings at which mlx-lm stops: the key, and what is wrong, as a clause."""
    layers = values.get("num_layers")
    if not _is_whole(layers) and not _says_lora_layers(values):
        yield "num_layers", f"says {_shown(layers)} for num_layers, where a whole number is needed"
    lora = values.get("lora_parameters")
    if not isinstance(lora, Mapping):
        said = f"says {_shown(lora)} for lora_parameters" if lora is not None else "has none"
        yield "lora_parameters", f"{said}, where rank, scale and dropout are needed"
        return
    for key, is_right, needed in (
        ("rank", lambda one: _is_whole(one) and one > 0, "a whole number above zero"),
        ("scale", _is_number, "a number"),
        ("dropout", lambda one: _is_number(one) and 0 <= one < 1, "a number from 0 to below 1"),
    ):
        # A scale that is not there has a finding of its own.
        if not is_right(lora.get(key)) and not (key == "scale" and key not in lora):
            what = f"says {_shown(lora[key])} for {key}" if key in lora else f"has no {key}"
            yield f"lora_parameters.{key}", f"{what}, where {needed} is needed"
    keys = lora.get("keys")
    if keys is not None and not (
        isinstance(keys, list) and all(isinstance(one, str) for one in keys)
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


def _effect(config: TrainingConfig) -> Iterator[Sign]:
    scale = config.values["lora_parameters"].get("scale")
    if scale is None:
        return
    where = "lora_parameters.scale"
    if not math.isfinite(scale):
        said = f"The scale is {scale}: the update, and every output with it, is no number."
        yield Sign("scale-not-finite", said, {"scale": scale}, where=where)
    elif scale == 0:
        said = "The scale is 0: mlx-lm adds nothing of the update to the weights."
        yield Sign("scale-zero", said, {"scale": scale}, where=where)
    elif scale < 0:
        said = f"The scale is {scale:g}: the update is subtracted, unless it was trained with that."
        yield Sign("scale-negative", said, {"scale": scale}, where=where)


def _tensors(adapter: Adapter, config: TrainingConfig, base: BaseModel | None) -> Iterator[Sign]:
    """The tensors that mlx-lm has no place for, by what leaves them out."""
    if config.fine_tune_type == "full":
        yield _refused(list(adapter.tensors), "the configuration says a full fine-tune", adapter)
        return
    unread = [one.name for one in adapter.tensors.values() if one.dtype == "F64"]
    if unread:
        yield _refused(
            unread, "they are stored as 64-bit numbers, which MLX does not read", adapter
        )
        return
    strangers = [one.name for one in adapter.others if one.name.rpartition(".")[2] not in _LEAVES]
    if strangers:
        yield _refused(strangers, "they are no adapter's parameters", adapter)
    is_dora = config.values.get("fine_tune_type") == "dora"
    magnitudes = [name for name in adapter.tensors if name.endswith(".m")]
    if magnitudes and not is_dora:
        yield _refused(magnitudes, "fine_tune_type is not dora, so that nothing is scaled", adapter)
    if experts := [one.name for one in adapter.modules if is_dora and one.experts is not None]:
        yield _refused(experts, "fine_tune_type is dora, which it has not for experts", adapter)
    layers = sorted({one.layer for one in adapter.modules if one.layer is not None})
    count = config.num_layers or 0
    if layers and count > 0:
        total = base.num_layers if base is not None else None
        # Of an unknown model its last layer may be the last that is there.
        first = (total or layers[-1] + 1) - count
        outside = [one.name for one in adapter.modules if one.layer in range(first)]
        if outside:
            few = (
                f"the last {count} layers are converted" if count > 1 else "one layer is converted"
            )
            yield _refused(outside, f"num_layers is {count}, so that {few}", adapter)
    keys = config.values["lora_parameters"].get("keys")
    if keys is None:
        if apart := [one.name for one in adapter.modules if not _NUMBER.search(one.name)]:
            yield _refused(apart, "without keys only modules of layers are converted", adapter)
    else:
        left_out = [
            one.name
            for one in adapter.modules
            if not any(matches(key, one.name, config) for key in keys)
        ]
        if left_out:
            yield _refused(left_out, "keys does not name them", adapter)


def _refused(names: list[str], because: str, adapter: Adapter) -> Sign:
    return Sign(
        "tensors-refused",
        f"mlx-lm refuses {some_of(names, 2)} ({len(names)} of "
        f"{max(len(adapter.modules), len(names))}): {because}.",
        {"refused": len(names), "modules": len(adapter.modules)},
        where=some_of(names),
    )


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
    names = [(one.name, re.sub(r"\.\d+(?=\.|$)", ".#", one.name)) for one in adapter.modules]
    strange = [name for name, pattern in names if pattern not in known]
    flat = [
        name
        for one, (name, pattern) in zip(adapter.modules, names, strict=True)
        if pattern in experts and one.experts is None
    ]
    if flat:
        yield Sign(
            "unknown-names",
            f"{len(flat)} of {len(names)} modules have names that only stacked experts have in "
            f"mlx-lm, such as {flat[0]}, and factors of one matrix: they are not loaded.",
            {"modules": len(names), "unknown": len(flat), "example": flat[0]},
            where=some_of(flat),
        )
        return
    if not strange and frozenset.intersection(*(known[pattern] for _, pattern in names)):
        return
    if strange:
        said = (
            f"{len(strange)} of {len(names)} modules have names that no architecture of mlx-lm "
            f"has, such as {strange[0]}"
        )
    else:
        said = f"No architecture of mlx-lm has modules of all of the {len(names)} names"
    yield Sign(
        "unknown-names",
        f"{said}: unless the base model is of another kind, they are not loaded.",
        {"modules": len(names), "unknown": len(strange), "example": next(iter(strange), None)},
        where=some_of(strange or [name for name, _ in names]),
    )
