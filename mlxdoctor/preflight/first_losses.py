"""The run's first iterations, made as the run will make them, and the losses that its log will say.

Same rows in the same order, same adapter, same optimiser and schedule: what the log reports at one
of its first reports is known before. A run that reports something else is not the run that was
looked at.
"""

from __future__ import annotations

import math
import time

import mlx.core as mx

from mlxdoctor.measure.first_report import FirstReport
from mlxdoctor.measure.training_step.state import handed_back
from mlxdoctor.preflight.prepared import PreparedRun
from mlxdoctor.train.masked_loss import scalar
from mlxdoctor.train.step import build_optimizer, compile_step

#: Iterations that are made, at most: what goes wrong shows in them.
ITERATIONS = 50


def first_report(run: PreparedRun, seconds: float) -> FirstReport | None:
    """What the log will report at the last report within the first iterations.

    The model is put back as it was.

    Args:
        seconds: that it may take; there are fewer iterations then.

    Returns:
        None where not even the first report was reached, or a loss was not finite.
    """
    settings = run.settings
    each, every = settings.steps_per_report, settings.grad_accumulation_steps
    wanted = min(ITERATIONS, settings.iters) // each * each if each > 0 else 0
    losses: list[float] = []
    begun = time.perf_counter()
    with handed_back(run.model, None):
        optimizer = build_optimizer(settings)
        optimizer.init(run.model.trainable_parameters())
        step = compile_step(run.model, optimizer, run.loss, settings)
        run.model.train()
        accumulated = None
        for number, batch in enumerate(run.batches(wanted), 1):
            if time.perf_counter() - begun > seconds:
                break
            output = step(
                mx.array(batch.tokens), mx.array(batch.spans), accumulated, number % every == 0
            )
            mx.eval(run.model.state, optimizer.state, mx.random.state, output)
            accumulated = output.accumulated
            losses.append(scalar(output.loss))
    last = len(losses) // each * each if each > 0 else 0
    if not last or not all(map(math.isfinite, losses[:last])):
        return None
    return FirstReport(last, sum(losses[last - each : last]) / each)
