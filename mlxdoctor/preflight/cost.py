"""What a plan takes, put together: shapes, rows, the machine, and steps that were timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.measure.rate_range import RateRange, StepCost
from mlxdoctor.measure.run_cost import RunCost, Way
from mlxdoctor.preflight.fitting import FittingLimits, PlannedRows, ways_to_fit
from mlxdoctor.preflight.memory import MeasuredStep, MemoryEstimate, corrected, predict_memory
from mlxdoctor.preflight.model_shape import ModelShape, shape_of, shape_of_name
from mlxdoctor.preflight.planned_step import Device, PlannedStep, width
from mlxdoctor.preflight.timing import PlannedLength, TimedStep, TimeEstimate, time_to_end
from mlxdoctor.run import Run

#: Ways to make it fit that are told.
MOST_WAYS = 3


def cost_of(run: Run, config: TrainingConfig, device: Device, memory: int | None) -> RunCost | None:
    """What the run would take; None where rows or shapes are not known.

    Args:
        run: the plan; what its steps took is in it, where some were made.
        config: its configuration.
        device: where it will run.
        memory: bytes that there are; None where it is to run on another machine.
    """
    shape, rows = _shape(run, config), run.get(SupervisedRows)
    limit = config.max_seq_length
    if shape is None or rows is None or not rows.batches or not limit:
        return None
    widths = [
        width(max(rows.rows[place].full_length for place in batch), limit) for batch in rows.batches
    ]
    lengths = [one.full_length for one in rows.rows]
    step = PlannedStep.of(config, lengths, device=device)
    if step is None:
        return None
    step = replace(step, tokens=max(widths), validation_tokens=max(widths))
    estimate = predict_memory(shape, step)
    rates = run.get(RateRange)
    if rates is not None and rates.longest is not None:
        longest = rates.longest
        # Other batches were trained on before, so that the optimiser's state is there.
        measured = MeasuredStep(longest.peak_bytes - longest.kept_bytes, longest.seconds)
        at = replace(step, batch_size=longest.rows, tokens=max(longest.width - 1, 1))
        if at.tokens == step.tokens and at.batch_size == step.batch_size:
            estimate = corrected(estimate, lambda: measured)
    limits = FittingLimits()
    time = _time(run, config, widths, rates)
    return RunCost(
        peak=estimate.peak,
        memory=memory,
        room=None if memory is None else round(limits.share * memory),
        parts={one.name: one.bytes for one in estimate.parts},
        batch_size=step.batch_size,
        tokens=step.tokens,
        is_rough=estimate.is_rough,
        is_measured=estimate.is_measured,
        ways=_ways(estimate, (shape, step), config, rows, memory),
        seconds=None if time is None else (time.low, time.seconds, time.high),
        step=None if time is None else time.step_range,
    )


def _shape(run: Run, config: TrainingConfig) -> ModelShape | None:
    base = run.get(BaseModel)
    if base is not None:
        return shape_of(base)
    return shape_of_name(config.model) if config.model else None


def _ways(
    estimate: MemoryEstimate,
    predicted: tuple[ModelShape, PlannedStep],
    config: TrainingConfig,
    rows: SupervisedRows,
    memory: int | None,
) -> tuple[Way, ...]:
    if memory is None or estimate.peak <= FittingLimits().share * memory:
        return ()
    from_shapes = predict_memory(*predicted).peak
    planned = PlannedRows(
        iterations=config.iters or 0,
        steps_per_eval=config.steps_per_eval or 200,
        save_every=config.save_every or 100,
        max_seq_length=rows.max_seq_length,
        uncut=max(one.full_length for one in rows.rows) + 1,
    )
    factor = estimate.peak / from_shapes if estimate.is_measured and from_shapes else 1.0
    found = ways_to_fit(*predicted, memory, planned, factor=factor)
    return tuple(
        Way(tuple(one.sentence for one in way.changes), way.settings, way.estimate.peak)
        for way in found[:MOST_WAYS]
    )


def _time(
    run: Run, config: TrainingConfig, widths: list[int], rates: RateRange | None
) -> TimeEstimate | None:
    dataset = run.get(Dataset)
    if rates is None:
        return None
    timed = _timed(rates.costs)
    if not timed or not config.iters or not config.batch_size:
        return None
    validation = dataset.splits.get("valid") if dataset is not None else None
    count = len(validation.rows) // config.batch_size if validation is not None else 0
    typical = sorted(widths)[len(widths) // 2]
    plan = PlannedLength(
        config.iters,
        config.batch_size,
        widths,
        # Their lengths are taken for those of the training rows.
        [typical] * count,
        config.steps_per_eval or 200,
        25 if config.val_batches is None else config.val_batches,
        config.save_every or 100,
    )
    return time_to_end(plan, timed, validated=_timed(rates.validated))


def _timed(costs: Sequence[StepCost]) -> list[TimedStep]:
    """Without those that something was compiled or allocated for."""
    return [
        TimedStep(one.rows, max(one.width - 1, 1), one.seconds) for one in costs if not one.first
    ]
