"""Whether the rerun gives the losses that were recorded, report by report."""

from __future__ import annotations

import math
from itertools import pairwise

from mlxdoctor.confirmation import Agreement
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments.shared.observation import Observation
from mlxdoctor.experiments.shared.rules import Limits


def agreement(
    log: TrainingLog | None, rerun: Observation | None, limits: Limits
) -> Agreement | None:
    """Compare reported losses with the means of the rerun's over the iterations between reports.

    Args:
        log: of the run that was examined.
        rerun: as recorded, with the recorded seed.
        limits: what counts as the same.

    Returns:
        None where the log has no training loss by iteration that the rerun reached.
    """
    if log is None or rerun is None:
        return None
    segment = log.main
    series = segment.get("train_loss")
    if series is None or segment.axis != "iteration":
        return None
    losses = dict(zip(rerun.iterations, rerun.losses, strict=True))
    compared: list[tuple[float, int, float, float]] = []
    reported = dict(zip(map(int, series.iterations), map(float, series.values), strict=True))
    for before, at in pairwise((0, *reported)):
        between = [losses[one] for one in range(before + 1, at + 1) if one in losses]
        if at <= before or len(between) < at - before:
            break
        mean = sum(between) / len(between)
        compared.append((_difference(reported[at], mean), at, reported[at], mean))
    if not compared:
        return None
    largest, at, recorded, mean = max(compared)
    return Agreement(
        reports=len(compared),
        last=compared[-1][1],
        difference=largest,
        iteration=at,
        recorded=recorded,
        rerun=mean,
        agrees=largest <= limits.same_step,
    )


def _difference(one: float, other: float) -> float:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other)
    return 0.0 if math.isfinite(one) == math.isfinite(other) else math.inf
