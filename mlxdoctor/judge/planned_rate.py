"""The learning rate of every update, as a configuration plans it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxdoctor.evidence.config import TrainingConfig


def planned_rates(config: TrainingConfig, updates: int) -> NDArray[np.float64] | None:
    """The rate of updates 1 to `updates`, float64 (updates,); None where it can't be told.

    Computed from the definitions of MLX's schedules, which are asked before an update is
    counted: the first update has the rate of step 0. As in `mlx_lm.lora` a warm-up lasts one
    step longer than its number says.
    """
    schedule = config.lr_schedule
    if schedule is None:
        rate = config.learning_rate
        return None if rate is None else np.full(updates, rate)
    arguments = schedule.get("arguments")
    if not isinstance(arguments, list) or not all(_is_number(one) for one in arguments):
        return None
    steps = np.arange(updates, dtype=np.float64)
    warmup = config.warmup
    rates = _scheduled(schedule, arguments, np.maximum(steps - (warmup + 1 if warmup else 0), 0.0))
    if rates is None or not warmup:
        return rates
    first = schedule.get("warmup_init", 0.0)
    if not _is_number(first):
        return None
    rising = _linear(float(first), float(arguments[0]), float(warmup), steps)
    return np.where(steps <= warmup, rising, rates)


def _scheduled(
    schedule: Mapping[str, Any], arguments: Sequence[float], steps: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    name, count = schedule.get("name"), len(arguments)
    values = [float(one) for one in arguments]
    if name == "linear_schedule" and count == 3 and values[2] > 0:
        return _linear(values[0], values[1], values[2], steps)
    if name == "cosine_decay" and count in (2, 3) and values[1] > 0:
        first, length, last = (*values, 0.0)[:3]
        turned = np.cos(math.pi * np.minimum(steps, length) / length)
        return np.asarray(last + 0.5 * (1.0 + turned) * (first - last))
    if name == "exponential_decay" and count == 2:
        return np.asarray(values[0] * np.power(values[1], steps))
    if name == "step_decay" and count == 3 and values[2] > 0:
        return np.asarray(values[0] * np.power(values[1], steps // values[2]))
    return None


def _linear(
    first: float, last: float, length: float, steps: NDArray[np.float64]
) -> NDArray[np.float64]:
    return first + (last - first) * np.minimum(steps, length) / length


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
