"""Whether the rerun gives the losses that were recorded, report by report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments.shared.observation import Observation
from mlxdoctor.experiments.shared.rules import Limits


@dataclass(frozen=True)
class Agreement:
    """How a rerun with the recorded seed compares with the log.

    Attributes:
        reports: how many reported losses the rerun reached.
        last: the last of their iterations.
        difference: the largest, in nats; infinite where one is finite and the other is not.
        iteration: where it is.
        recorded: the loss that was reported there.
        rerun: the rerun's, averaged over the same iterations.
        agrees: whether the difference is within the limit.
    """

    reports: int
    last: int
    difference: float
    iteration: int
    recorded: float
    rerun: float
    agrees: bool

    @property
    def sentence(self) -> str:
        """What it says of the reproduction."""
        over = f"{self.reports} reports up to iteration {self.last:,}"
        if self.reports == 1:
            over = f"the report at iteration {self.last:,}"
        if self.agrees:
            return (
                "Rerun with the recorded seed, the training gives the recorded losses to within "
                f"{self.difference:.2g} nats ({over}): it is the same training, step for step."
            )
        return (
            "Rerun with the recorded seed, the losses are not the recorded ones: at iteration "
            f"{self.iteration:,} the log has {self.recorded:.3f} and the rerun {self.rerun:.3f} "
            f"({over} compared). The run's own trainer, another version or another machine "
            "makes the difference; what is shown here is the kind of failure, not the same steps."
        )

    def to_dict(self) -> dict[str, Any]:
        """The comparison as the report shows it."""
        return {
            "experiment": "agreement",
            "reports": self.reports,
            "last": self.last,
            "difference": self.difference,
            "iteration": self.iteration,
            "recorded": self.recorded,
            "rerun": self.rerun,
            "agrees": self.agrees,
            "sentence": self.sentence,
        }


def agreement(log: TrainingLog, rerun: Observation, limits: Limits) -> Agreement | None:
    """Compare reported losses with the means of the rerun's over the iterations between reports.

    Args:
        log: of the run that was examined.
        rerun: as recorded, with the recorded seed.
        limits: what counts as the same.

    Returns:
        None where the log has no training loss by iteration that the rerun reached.
    """
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
