"""The keys of `mlx_lm.lora` 0.32.2: their defaults, what it needs of values, and other names.

Read from `mlx_lm_keys.toml`, so that configuration, rows, trainer, checks and advice agree on it; a
test compares the defaults (`CONFIG_DEFAULTS`) with the mlx-lm that is installed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from mlxdoctor.evidence.json_text import as_float
from mlxdoctor.tables import shipped

_KEYS = shipped("mlxdoctor.evidence", "mlx_lm_keys.toml")
_LORA = "lora_parameters."

#: Under `lora_parameters`; the whole is used where it is not stated, and nothing of it elsewhere.
MLX_LM_LORA_DEFAULTS: Mapping[str, Any] = {
    name.removeprefix(_LORA): key["default"]
    for name, key in _KEYS.items()
    if "default" in key and name.startswith(_LORA)
}
MLX_LM_DEFAULTS: Mapping[str, Any] = {
    name: key["default"] for name, key in _KEYS.items() if "default" in key and "." not in name
}
#: Where an adapter is written where nothing is stated.
MLX_LM_ADAPTER_PATH = "adapters"
#: Every key that `mlx_lm.lora` reads of a configuration; it passes over any other in silence.
MLX_LM_KEYS = frozenset(name for name in _KEYS if "." not in name)
#: What other trainers, older releases and people call a key -> what mlx-lm calls it.
MEANT: Mapping[str, str] = {
    other: name for name, key in _KEYS.items() for other in key.get("also", ())
}
OPTIMIZERS = tuple(_KEYS["optimizer"]["among"])
#: Schedule -> how many arguments it takes.
SCHEDULES: Mapping[str, list[int]] = _KEYS["lr_schedule.arguments"]["counts"]


def value_at(values: Mapping[str, Any], place: str) -> Any:
    """The value under a key; dots in `place` enter nested tables."""
    value: Any = values
    for part in place.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def is_numbers(arguments: Any) -> TypeGuard[list[float]]:
    """Whether it is a list of numbers that is not empty."""
    return isinstance(arguments, list) and bool(arguments) and None not in map(as_float, arguments)


#: Kind of value -> whether a value is of it.
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "number": lambda value: as_float(value) is not None,
    "finite": lambda value: as_float(value) is not None and abs(value) < math.inf,
    "share": lambda value: as_float(value) is not None and 0 <= value < 1,
    "numbers": is_numbers,
    "names": lambda value: (
        isinstance(value, list | tuple) and all(isinstance(key, str) for key in value)
    ),
    "table": lambda value: isinstance(value, Mapping),
}


class Need(NamedTuple):
    """Whether mlx-lm takes a value, and what it takes, as in "set iters to ..."."""

    holds: Callable[[Any], bool]
    text: str


def _need(key: Mapping[str, Any]) -> Need | None:
    if "among" in key:
        return Need(lambda value: value in key["among"], f"one of {', '.join(key['among'])}")
    if "whole_from" in key:
        least = key["whole_from"]
        text = f"a whole number from {max(least, 0)} on" + ", or -1 for all" * (least == -1)
        return Need(lambda value: type(value) is int and value >= least, text)
    return Need(_KINDS[key["is"]], key["needs"]) if "is" in key else None


#: Place in the configuration -> whether mlx-lm takes a value that is stated, and what it needs.
NEEDS: Mapping[str, Need] = {
    name: need for name, key in _KEYS.items() if (need := _need(key)) is not None
}
