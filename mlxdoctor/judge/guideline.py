"""The step, learning rate times scale, that is usual for a model of a given size."""

from __future__ import annotations

from dataclasses import dataclass

from mlxdoctor.check import limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig

_SEED = "mlx-lm runs at scale 20: 1-3 B 1e-5 to 5e-5, 7 B 5e-6 to 2e-5, 13 B 1e-6 to 1e-5"


@dataclass(frozen=True)
class BandLimits:
    """The band of rate × scale, and how it depends on the model's size."""

    lowest: float = limit(2e-5, unit="rate × scale at 10 B parameters", source=_SEED)
    highest: float = limit(
        5e-4,
        unit="rate × scale at 10 B parameters",
        source="between mlx-lm's advice (4e-4) and sweeps with alpha/rank (6e-4 for Llama 3.1 8B)",
    )
    exponent: float = limit(
        0.4,
        unit="power of 10 B / parameters",
        source="fits sweeps (1e-3 for 1 B, 3e-4 for 8 B, tinker-cookbook) and runs of a 5e5 model",
    )
    far: float = limit(
        3.0, unit="times the band's edge", source="seed 000 failed at 4 times the advised maximum"
    )
    unknown_size: float = limit(
        1e9, unit="parameters", source="assumed where the base model is not known"
    )


@dataclass(frozen=True)
class Step:
    """A run's step and the band it should lie in, all in rate × scale.

    Attributes:
        size: the step.
        low: the band's lower edge.
        high: its upper edge.
        parameters: of the base model; None where a size was assumed.
    """

    size: float
    low: float
    high: float
    parameters: float | None

    @property
    def times_above(self) -> float:
        """The step over the upper edge."""
        return self.size / self.high

    @property
    def times_below(self) -> float:
        """The lower edge over the step; infinity for a step of zero."""
        return self.low / self.size if self.size else float("inf")


def step_of(config: TrainingConfig, base: BaseModel | None, limits: BandLimits) -> Step | None:
    """The step of a LoRA run; None where the configuration states no usable one."""
    rate, scale = config.learning_rate, config.scale
    # Also false for NaN.
    if rate is None or scale is None or not 0 < rate < float("inf"):
        return None
    if config.fine_tune_type == "full":
        return None
    parameters = float(base.parameter_count) if base is not None else None
    growth = (1e10 / max(parameters or limits.unknown_size, 1.0)) ** limits.exponent
    return Step(rate * abs(scale), limits.lowest * growth, limits.highest * growth, parameters)
