"""The step that a configuration takes: how large it may be, and the rate of every update."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS, is_numbers
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.model_facts import ModelFacts, model_facts

#: A scale from which on it has the size of an alpha.
ALPHA_LIKE = 64.0
#: Optimisers whose step is about the rate, whatever the gradient's size.
ADAM = ("adam", "adamw", "adamax")
#: The band of rate x scale at 10 billion parameters. mlx-lm runs at scale 20: 1-3 B 1e-5 to 5e-5,
#: 7 B 5e-6 to 2e-5, 13 B 1e-6 to 1e-5; the upper edge lies between that advice (4e-4) and sweeps
#: with alpha/rank (6e-4 for Llama 3.1 8B).
LOWEST, HIGHEST = 2e-5, 5e-4
#: Power of 10 billion over the parameters by which it rises: fits sweeps (1e-3 for 1 B, 3e-4 for
#: 8 B, tinker-cookbook) and runs of a model of 500,000.
EXPONENT = 0.4
#: Times the band's edge: seed 000 failed at 4 times the advised maximum.
FAR = 3.0
#: Parameters that are assumed where neither files, log nor name tell the size.
UNKNOWN_SIZE = 1e9


@dataclass(frozen=True)
class Band:
    """The steps, in rate × scale, that are usual for a model."""

    low: float
    high: float
    model: ModelFacts

    def has(self, step: float) -> bool:
        """Whether a step is a usual one."""
        return self.low <= step <= self.high


def better_rate(rate: float, low: float, high: float, *, lower: bool) -> float:
    """The learning rate to try next, to two digits: the one that every advice gives.

    A tenth or ten times as much where that is usual, else the middle of what is. A rate that is
    to become lower never becomes higher by that, nor the other way round.

    Args:
        low: the lowest usual rate at the run's scale; 0 where none is known.
        high: the highest; infinity where none is known.
        lower: whether it is to become lower.
    """
    better = rate / 10 if lower else rate * 10
    if not low <= better <= high:
        middle = math.sqrt(low * high)
        better = middle if (middle < rate) == lower else better
    return float(f"{better:.2g}")


def better_scale(scale: float, rank: int | None, rate: float, band: Band) -> float:
    """The alpha over the rank in place of a scale that is an alpha.

    It is mlx-lm's default where that quotient is like an alpha, or makes the rate an unusual one.
    """
    usual = float(MLX_LM_LORA_DEFAULTS["scale"])
    meant = float(f"{scale / (rank or MLX_LM_LORA_DEFAULTS['rank']):.3g}")
    is_better = band.has(rate * usual) and not band.has(rate * meant)
    return usual if meant >= ALPHA_LIKE or is_better else meant


def usual_steps(config: TrainingConfig, base: BaseModel | None, log: TrainingLog | None) -> Band:
    """The steps that are usual for the model of a LoRA run."""
    model = model_facts(config, log, base)
    growth = (1e10 / max(model.parameters or UNKNOWN_SIZE, 1.0)) ** EXPONENT
    return Band(LOWEST * growth, HIGHEST * growth, model)


def usual_rates(
    config: TrainingConfig, base: BaseModel | None, log: TrainingLog | None = None
) -> tuple[float, float] | None:
    """The lowest and the highest usual learning rate at a run's scale.

    None where the run is not one with LoRA, or its scale is 0 or not stated.
    """
    if config.fine_tune_type == "full" or not config.scale:
        return None
    band = usual_steps(config, base, log)
    return band.low / abs(config.scale), band.high / abs(config.scale)


def planned_rates(config: TrainingConfig, updates: int) -> NDArray[np.float64] | None:
    """The rate of updates 1 to `updates`, float64 (updates,); None where it can't be told.

    MLX's schedules are asked before an update is counted: the first has the rate of step 0. As in
    `mlx_lm.lora` a warm-up lasts one step longer than its number says.
    """
    schedule = config.lr_schedule
    if schedule is None:
        rate = config.learning_rate
        return None if rate is None else np.full(updates, rate)
    warmup, arguments = config.warmup, schedule.get("arguments")
    first = schedule.get("warmup_init", 0.0) if warmup else 0.0
    if not is_numbers(arguments) or not is_numbers([first]):
        return None
    if not all(map(math.isfinite, (first, *arguments))):
        return None
    steps = np.arange(updates, dtype=np.float64)
    rates = _scheduled(schedule, arguments, np.maximum(steps - (warmup + 1 if warmup else 0), 0.0))
    if rates is None or not warmup:
        return rates
    rising = _linear(float(first), float(arguments[0]), float(warmup), steps)
    return np.where(steps <= warmup, rising, rates)


def _scheduled(
    schedule: Mapping[str, Any], arguments: Sequence[float], steps: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    stated: list[Any] = [schedule.get("name"), *map(float, arguments)]
    match stated:
        case "linear_schedule", first, last, length if length > 0:
            return _linear(first, last, length, steps)
        case "cosine_decay", first, length, *rest if length > 0 and len(rest) < 2:
            last = rest[0] if rest else 0.0
            turned = np.cos(math.pi * np.minimum(steps, length) / length)
            return np.asarray(last + 0.5 * (1.0 + turned) * (first - last))
        case "exponential_decay", first, factor:
            return np.asarray(first * np.power(factor, steps))
        case "step_decay", first, factor, length if length > 0:
            return np.asarray(first * np.power(factor, steps // length))
    return None


def _linear(
    first: float, last: float, length: float, steps: NDArray[np.float64]
) -> NDArray[np.float64]:
    return first + (last - first) * np.minimum(steps, length) / length
