"""Configurations of home-made trainers, which keep their keys in sections.

`training: {learning_rate: 1e-4, lora: {rank: 8}}` is read as `learning_rate: 1e-4` and
`lora_parameters: {rank: 8}`, and where each key stands is kept, so that advice can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Sections within sections that are looked into.
MAX_DEPTH = 3
_LORA = "lora_parameters."
#: mlx-lm's keys; a word in the name of a section (or of the key itself) within which they are
#: looked for, empty for anywhere; what other trainers call them. The first that is there counts.
_NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("learning_rate", "", ("learning_rate", "lr")),
    ("batch_size", "", ("batch_size", "per_device_train_batch_size", "micro_batch_size")),
    ("grad_accumulation_steps", "", ("grad_accumulation_steps", "gradient_accumulation_steps")),
    ("iters", "", ("iters", "iterations", "max_iters")),
    ("max_seq_length", "", ("max_seq_length", "max_seq_len", "max_length")),
    ("num_layers", "", ("num_layers", "lora_layers")),
    ("mask_prompt", "", ("mask_prompt",)),
    ("optimizer", "", ("optimizer",)),
    ("seed", "", ("seed",)),
    ("model", "", ("model", "model_name", "model_path", "base_model", "model_name_or_path")),
    ("model", "model", ("name", "path", "id", "name_or_path")),
    ("lora_parameters.rank", "lora", ("rank", "r", "lora_rank", "lora_r")),
    ("lora_parameters.alpha", "lora", ("alpha", "lora_alpha")),
    ("lora_parameters.scale", "lora", ("scale", "lora_scale")),
    ("lora_parameters.dropout", "lora", ("dropout", "lora_dropout")),
)
#: A section that is about training, down to a rate in it, at the beginning of a YAML file.
_IN_YAML = re.compile(
    r"^(?:train\w*|fine_?tun\w*|optim\w*|hyper\w*|lora\w*)\s*:[ \t]*(?:#.*)?\n"
    r"(?:(?:[ \t]+\S.*|[ \t]*|#.*)\n){0,60}?[ \t]+(?:learning_rate|lr)[ \t]*:[ \t]*[-+.\d]",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Flattened:
    """What a configuration in sections says, under mlx-lm's keys.

    Attributes:
        values: the keys and values.
        places: key -> where it stands, with dots between the sections.
    """

    values: Mapping[str, Any]
    places: Mapping[str, str]


def shows_rate(head: str) -> bool:
    """Whether the beginning of a YAML file has a section with a learning rate."""
    return _IN_YAML.search(head) is not None


def flattened(document: Mapping[str, Any]) -> Flattened | None:
    """The keys of a configuration in sections; None where no section has a learning rate."""
    leaves = list(_leaves(document, (), MAX_DEPTH))
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    lora: dict[str, Any] = {}
    for key, section, names in _NAMES:
        within = [leaf for leaf in leaves if any(section in part.lower() for part in leaf[0])]
        named = (leaf for name in names for leaf in within if leaf[0][-1] == name)
        if key not in places and (leaf := next(named, None)) is not None:
            path, value = leaf
            places[key] = ".".join(path)
            if key.startswith(_LORA):
                lora[key.removeprefix(_LORA)] = value
            else:
                values[key] = value
    if not _is_number(values.get("learning_rate")):
        return None
    return Flattened({**values, **({"lora_parameters": lora} if lora else {})}, places)


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        # YAML reads 1e-4, which has no point, as text.
        return re.fullmatch(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(
    section: Mapping[str, Any], path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no section, those of outer sections first."""
    for key, value in section.items():
        if not isinstance(value, Mapping):
            yield (*path, str(key)), value
    for key, value in section.items():
        if isinstance(value, Mapping) and depth:
            yield from _leaves(value, (*path, str(key)), depth - 1)
