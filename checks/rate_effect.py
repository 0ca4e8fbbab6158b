"""What steps of this size did to the loss and to the weights.

What it finds. A loss that lost only a small part and was still falling when the run ended, with
steps far below what is usual; and an update larger than the weights it is added to, with steps
above what is usual.

Why it matters. A step size alone is advice, a slow curve alone may be a short run, a large
update alone a small model. Together they tell: the run ended before it had learned, or it wrote
over the base model and learned what it could again, from nothing.

How it is measured. The step is the highest rate times the scale, against the band of
`learning-rate`. The part that was lost is measured from the base model's own loss; it still
falls where the last third of the reports lies below the middle third by several noises and by a
good part of the whole fall. The update is ‖ΔW‖/‖W‖, the median over modules.

When it is wrong. Optimisers that scale their own steps (Adafactor, Lion, plain SGD) have no
such band: only Adam's kind is judged by it. A resumed run begins with less to lose.

What to do. Small steps: raise the rate into the band and look at 50 iterations. Large ones:
divide the rate or set the scale to alpha / rank, and start again from the base model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.engines.series import SeriesFacts, describe
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.judge.curve import start_of
from mlxdoctor.judge.rate import BandLimits, Step, step_of
from mlxdoctor.measure.weights.adapter_facts import adapter_facts

#: Optimisers whose step is about the rate, whatever the gradient's size.
_ADAM = ("adam", "adamw", "adamax")


@dataclass(frozen=True)
class Limits(BandLimits):
    """When steps did too little, and when they did too much."""

    enough: int = limit(9, unit="reports", source="three thirds of three")
    small_part: float = limit(
        0.35,
        unit="share of the starting loss that was lost",
        source="runs at a hundredth of a sound rate lose 0.09 to 0.27",
        false_alarms="0 of 95 sound runs of three base models with Adam, which lose 0.46 to 0.98",
    )
    still_falling: float = limit(
        0.15,
        unit="share of the whole fall that lies between the middle and the last third",
        source="the same runs: 0.24 to 0.32; sound ones 0.09 at most, with Adam",
        false_alarms="0 of 95 sound runs of three base models with Adam",
    )
    falling_noises: float = limit(
        3.0, unit="noises between middle and last third", source="more than scatter"
    )
    overwritten: float = limit(
        1.8,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="12 runs with steps of 0.4 to 1.6 times the band's upper edge: those above the "
        "edge are damaged and at 2.3 or more, those below it reach 1.7",
        false_alarms="0 of 95 sound runs of three base models with Adam, which reach 1.3",
    )


@check(
    codes={
        "barely-learned": Symptom.warning(
            "with steps this small the loss lost a small part and still fell",
            "a loss that falls fast at first and has flattened by the end",
            "[set learning_rate to {advised_learning_rate:g}]",
            says="The loss went from {start:.3f} to {end:.3f} (median of the last {third} reports)"
            ", {lost:.0%} lower, and {late_share:.0%} of that between the middle and the last "
            "third: it still fell when the run ended. Rate × scale is {rate_times_scale:.2g}; "
            "the least that is usual is {lowest:.2g}.",
        ),
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
    cost=Cost.WEIGHTS,
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
    """Hold the step against the curve and against the update."""
    step = step_of(config, base, limits, log)
    if step is None:
        raise NotApplicable("the configuration states no LoRA step")
    if config.optimizer not in _ADAM:
        raise NotApplicable(f"the band is one for Adam, and the optimiser is {config.optimizer}")
    if step.times_below >= limits.far:
        if log is None:
            raise Inconclusive("there is no log to see what such small steps did")
        yield from _barely_learned(log, config, step, limits)
    elif step.times_above >= 1.0 and step.parameters is not None:
        if adapter is None or not adapter.modules:
            raise Inconclusive("there is no adapter to see what such large steps did")
        # A module whose B is zero has no update.
        modules = adapter_facts(adapter, config, base)
        drifts = [module.relative for module in modules if not module.b.is_zero]
        sizes = [size for size in drifts if size is not None and math.isfinite(size)]
        if not sizes or len(sizes) < len(drifts):
            raise Inconclusive("the update of some modules has no size to compare with the base")
        if median(sizes) >= limits.overwritten:
            yield _overwritten(sizes, config, log, step)


def _barely_learned(
    log: TrainingLog, config: TrainingConfig, step: Step, limits: Limits
) -> Iterator[Sign]:
    if log.resumed or config.resume_adapter_file or log.is_preference:
        raise NotApplicable("the run did not begin at the base model's loss")
    curve, segment = _curve(log), log.main
    if curve is None or not segment.shows_start or curve.points < limits.enough:
        raise Inconclusive("the log shows too little of the curve")
    values = segment.series["train_loss"].values
    values = values[np.isfinite(values)]
    third = len(values) // 3
    middle, last = (
        float(np.median(part)) for part in (values[-2 * third : -third], values[-third:])
    )
    start = start_of(segment, curve).loss
    if start <= 0.0:
        return
    lost = 1.0 - last / start
    late = (middle - last) / (start - last) if start > last else 0.0
    # More than the whole fall lies there only where the loss had risen before.
    if lost > limits.small_part or not limits.still_falling <= late <= 1.0:
        return
    if middle - last < limits.falling_noises * curve.noise:
        return
    yield Sign(
        "barely-learned",
        {
            **_step(step, lower=False),
            "start": start,
            "middle": middle,
            "end": last,
            "third": third,
            "lost": lost,
            "late_share": late,
            "noise": curve.noise,
        },
        # Without the model's size the band may be off by a power of ten.
        severity=Severity.ERROR if step.parameters is not None else None,
    )


def _overwritten(
    sizes: Sequence[float], config: TrainingConfig, log: TrainingLog | None, step: Step
) -> Sign:
    curve = _curve(log) if log is not None and not log.is_preference else None
    figures: dict[str, Measurement] = {}
    if curve is not None and log is not None:
        figures = {"start": start_of(log.main, curve).loss, "end": curve.end}
    return Sign(
        "overwritten",
        {
            **_step(step, lower=True),
            **figures,
            "relative_update": median(sizes),
            "largest_update": max(sizes),
            "scale": config.scale,
        },
    )


def _step(step: Step, *, lower: bool) -> dict[str, Measurement]:
    return {
        "rate_times_scale": step.size,
        "lowest": step.low,
        "highest": step.high,
        "guideline": (step.low, step.high),
        "advised_learning_rate": step.better_rate(lower=lower),
    }


def _curve(log: TrainingLog) -> SeriesFacts | None:
    losses = log.main.get("train_loss")
    curve = describe(losses.iterations, losses.values) if losses is not None else None
    return curve if curve is not None and curve.points else None
