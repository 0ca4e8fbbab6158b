"""The learning rates that are usual for a run's model and scale."""

from __future__ import annotations

from dataclasses import replace

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.judge.rate import BandLimits, step_of


def usual_values(config: TrainingConfig, base: BaseModel | None) -> dict[str, tuple[float, float]]:
    """Key -> lowest and highest usual value; empty where the run is not one with LoRA.

    Asked of any rate, since the band is the model's: that of the run may be none.
    """
    any_rate = {**config.values, "learning_rate": 1.0, "lr_schedule": None}
    step = step_of(replace(config, values=any_rate), base, BandLimits())
    if step is None or not config.scale:
        return {}
    return {"learning_rate": (step.low / abs(config.scale), step.high / abs(config.scale))}
