"""What steps of this size did to the weights.

What it finds. An update larger than the weights it is added to, with steps above what is usual.

Why it matters. A step size alone is advice, a large update alone a small model. Together they
tell: the run wrote over the base model and learned what it could again, from nothing.

How it is measured. The step is the highest rate times the scale, against the band of
`learning-rate`. The update is ‖ΔW‖/‖W‖, the median over modules.

When it is wrong. Optimisers that scale their own steps (Adafactor, Lion, plain SGD) have no
such band: only Adam's kind is judged by it.

What to do. Divide the rate or set the scale to alpha / rank, and start again from the base model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.engines.series import describe
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom
from mlxdoctor.judge.curve import start_of
from mlxdoctor.judge.rate import BandLimits, step_of
from mlxdoctor.measure.weights.adapter_facts import adapter_facts

#: Optimisers whose step is about the rate, whatever the gradient's size.
_ADAM = ("adam", "adamw", "adamax")


@dataclass(frozen=True)
class Limits(BandLimits):
    """When steps did too much."""

    overwritten: float = limit(
        1.8,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="12 runs with steps of 0.4 to 1.6 times the band's upper edge: those above the "
        "edge are damaged and at 2.3 or more, those below it reach 1.7",
        false_alarms="0 of 95 sound runs of three base models with Adam, which reach 1.3",
    )


@check(
    codes={
        "overwritten": Symptom.error(
            "with steps this large the update became larger than the weights",
            "an update smaller than the weights",
            "[set learning_rate to {advised_learning_rate:g}]",
            says="The update is {relative_update:.2g} times the weights it is added to: at a rate "
            "× scale of {rate_times_scale:.2g}, where {highest:.2g} is the most that is usual, the "
            "base model was written over, and what the tuned model knows it learned from these "
            "rows.[ The loss went from {start:.3f} to {end:.3f}.]",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def rate_effect(
    config: TrainingConfig,
    base: BaseModel | None,
    log: TrainingLog | None,
    adapter: Adapter | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Hold the step against the update."""
    step = step_of(config, base, limits, log)
    if step is None:
        raise NotApplicable("the configuration states no LoRA step")
    if config.optimizer not in _ADAM:
        raise NotApplicable(f"the band is one for Adam, and the optimiser is {config.optimizer}")
    if step.times_above < 1.0 or step.parameters is None:
        return
    if adapter is None or not adapter.modules:
        raise Inconclusive("there is no adapter to see what such large steps did")
    # A module whose B is zero has no update.
    modules = adapter_facts(adapter, config, base)
    drifts = [module.relative for module in modules if not module.b.is_zero]
    sizes = [size for size in drifts if size is not None and math.isfinite(size)]
    if not sizes or len(sizes) < len(drifts):
        raise Inconclusive("the update of some modules has no size to compare with the base")
    if median(sizes) >= limits.overwritten:
        measured: dict[str, Measurement] = {
            "rate_times_scale": step.size,
            "lowest": step.low,
            "highest": step.high,
            "guideline": (step.low, step.high),
            "advised_learning_rate": step.better_rate(lower=True),
            "relative_update": median(sizes),
            "largest_update": max(sizes),
            "scale": config.scale,
        }
        yield Sign("overwritten", measured | _losses(log))


def _losses(log: TrainingLog | None) -> dict[str, Measurement]:
    """Where the loss began and where it ended, in a log that has it."""
    losses = log.main.get("train_loss") if log is not None and not log.is_preference else None
    if log is None or losses is None:
        return {}
    curve = describe(losses.iterations, losses.values)
    return {"start": start_of(log.main, curve).loss, "end": curve.end} if curve.points else {}
