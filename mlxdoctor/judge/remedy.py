"""The configuration change that cures a cause, applied to a run's own configuration."""

import copy
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mlxdoctor.causes import Change
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS, is_numbers, value_at
from mlxdoctor.finding import ADVISED, Finding
from mlxdoctor.judge.rate import better_rate
from mlxdoctor.report import Fix


def fix_for(
    change: Change | None,
    config: TrainingConfig | None,
    usual: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Fix | None:
    """`change` applied to `config`; None where there is no key to change or nothing changes.

    Args:
        usual: last part of a key -> the range of values that is usual; a change goes into it.
            Of a range of one value, it is that.
    """
    if change is None or config is None or config.origin == "peft":
        return None
    before = value_in_force(config, change.key)
    after = _changed(before, change, usual.get(change.key.rsplit(".", 1)[-1]))
    if after is None or after == before:
        return None
    fix = {change.key: before}, {change.key: after}
    stated = dict(config.values)
    changed = changed_values(stated, *fix)
    texts = [json.dumps(values, indent=4, default=str) for values in (stated, changed)]
    return Fix(*fix, config_diff(config, *texts))


def config_diff(config: TrainingConfig, stated: str, changed: str) -> str:
    """A unified diff from the text of a configuration to that of a changed one."""
    texts = (stated.splitlines(), changed.splitlines())
    names = (config.path.name, f"{config.path.name} (fixed)")
    return "\n".join(difflib.unified_diff(*texts, *names, lineterm="", n=1))


def value_in_force(config: TrainingConfig, key: str) -> Any:
    """The value in force: as stated, or mlx-lm's default for it."""
    name = key.rsplit(".", 1)[-1]
    return getattr(config, name) if hasattr(config, name) else value_at(config.values, key)


def _changed(before: Any, change: Change, usual: tuple[float, float] | None) -> Any:
    low, high = usual if usual is not None else (0.0, math.inf)
    if change.operation == "set":
        return low if low == high else change.value
    if isinstance(before, bool) or not isinstance(before, int | float):
        return None
    lower = change.operation == "divide"
    if low == high:
        wanted = int(low) if isinstance(before, int) else low
        # What is no rate has no side on which to be.
        return wanted if before < 0 or (wanted < before) == lower else None
    if isinstance(before, float):
        # A rate a thousand times too high is still too high after one division.
        return better_rate(before, low, high, lower=lower)
    if lower:
        return max(1, round(before / change.value))
    # What is needed is known, and more would only take memory.
    return rounded_up(low if usual is not None else before * change.value)


def rounded_up(count: float) -> int:
    """A count of tokens as people set it: the next multiple of 64, where it is that large."""
    return math.ceil(count / 64) * 64 if count >= 64 else math.ceil(count)


def needed_values(findings: Iterable[Finding]) -> dict[str, tuple[float, float]]:
    """Last part of a key -> the range that its value has to be in, where a check measured it.

    A finding says of a length in tokens `needed_max_seq_length`; of a step, the guideline; and
    of another key `advised_` and the last part of its name: the one value to set.
    """
    rates: dict[str, tuple[float, float]] = {}
    advised: dict[str, tuple[float, float]] = {}
    longest = 0
    for measured in (finding.measured for finding in findings):
        guideline, scale = measured.get("guideline"), measured.get("scale")
        if isinstance(guideline, tuple) and isinstance(scale, int | float) and scale:
            low, high = (float(bound) / abs(scale) for bound in guideline)
            rates.setdefault("learning_rate", (low, high))
        length = measured.get("needed_max_seq_length")
        longest = max(longest, length if isinstance(length, int) else 0)
        for name, value in measured.items():
            if name.startswith(ADVISED) and isinstance(value, int | float):
                advised.setdefault(name.removeprefix(ADVISED), (float(value), float(value)))
    lengths = {"max_seq_length": (float(longest), math.inf)} if longest else {}
    return {**rates, **lengths, **advised}


def changed_values(
    values: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of a configuration with a fix made.

    In mlx-lm a schedule wins over the plain rate, so that it is scaled with that.
    """
    changed = copy.deepcopy(dict(values))
    assign(changed, after)
    schedule, rate = changed.get("lr_schedule"), before.get("learning_rate")
    if isinstance(schedule, dict) and rate and "learning_rate" in after:
        arguments = scaled_schedule(schedule, after["learning_rate"] / rate)
        if arguments is not None:
            schedule["arguments"] = arguments
    return changed


def assign(values: Any, after: Mapping[str, Any]) -> None:
    """Set keys of nested dictionaries; where there is no LoRA table, its other keys are mlx-lm's.

    Args:
        values: changed in place; of YAML, it keeps its comments.
        after: key -> value; a key with dots is nested.
    """
    for key, value in after.items():
        *path, last = key.split(".")
        inner = values
        for part in path:
            if not isinstance(inner.get(part), dict):
                inner[part] = dict(MLX_LM_LORA_DEFAULTS) if part == "lora_parameters" else {}
            inner = inner[part]
        inner[last] = value


def scaled_schedule(schedule: Mapping[str, Any], times: float) -> list[Any] | None:
    """The arguments of mlx-lm's `lr_schedule` with its highest rate so many times as high.

    None where they are no list that begins with a rate. A linear schedule has two rates, of
    which the second may be the higher one.
    """
    stated = schedule.get("arguments")
    arguments = stated if isinstance(stated, list) else []
    count = 2 if schedule.get("name") == "linear_schedule" else 1
    rates = arguments[:count]
    if len(rates) < count or not is_numbers(rates):
        return None
    return [*(float(f"{rate * times:.6g}") for rate in rates), *arguments[count:]]
