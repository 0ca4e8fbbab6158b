"""The configuration change that cures a cause, applied to a run's own configuration."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxdoctor.causes import Change
from mlxdoctor.evidence.config import TrainingConfig


@dataclass(frozen=True)
class Fix:
    """A change of configuration keys, and the same as a unified diff."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    diff: str

    def to_dict(self) -> dict[str, Any]:
        """The fix as the report shows it."""
        return {"before": dict(self.before), "after": dict(self.after), "diff": self.diff}


def fix_for(change: Change | None, config: TrainingConfig | None) -> Fix | None:
    """`change` applied to `config`; None where there is no key to change or nothing changes."""
    if change is None or config is None or config.origin != "mlx-lm":
        return None
    values = copy.deepcopy(dict(config.values))
    before = _current(config, change.key)
    after = _changed(before, change)
    if after is None or after == before:
        return None
    changed = copy.deepcopy(values)
    _assign(changed, change.key, after)
    if change.key == "learning_rate" and isinstance(values.get("lr_schedule"), dict):
        # A schedule wins over the plain rate in mlx-lm, so the fix has to reach it.
        _scale_schedule(changed["lr_schedule"], before, after)
    diff = difflib.unified_diff(
        json.dumps(values, indent=4, default=str).splitlines(),
        json.dumps(changed, indent=4, default=str).splitlines(),
        fromfile=config.path.name,
        tofile=f"{config.path.name} (fixed)",
        lineterm="",
        n=1,
    )
    return Fix({change.key: before}, {change.key: after}, "\n".join(diff))


def _current(config: TrainingConfig, key: str) -> Any:
    """The value in force: as stated, or mlx-lm's default for it."""
    if hasattr(TrainingConfig, key.rsplit(".", 1)[-1]):
        return getattr(config, key.rsplit(".", 1)[-1])
    value: Any = config.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _changed(before: Any, change: Change) -> Any:
    if change.operation == "set":
        return change.value
    if isinstance(before, bool) or not isinstance(before, int | float):
        return None
    scaled = before / change.value if change.operation == "divide" else before * change.value
    if isinstance(before, int):
        return max(1, round(scaled))
    return float(f"{scaled:.6g}")


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        nested = values.get(part)
        values[part] = nested if isinstance(nested, dict) else {}
        values = values[part]
    values[last] = value


def _scale_schedule(schedule: dict[str, Any], before: float, after: float) -> None:
    arguments = schedule.get("arguments")
    if isinstance(arguments, list) and arguments and isinstance(arguments[0], int | float):
        schedule["arguments"] = [float(f"{arguments[0] * after / before:.6g}"), *arguments[1:]]
