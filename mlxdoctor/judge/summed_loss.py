"""Whether a logged loss is a sum over rows or targets, where it should be a mean over targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment
from mlxdoctor.judge.model_facts import GuessLimits


@dataclass(frozen=True)
class Limits(GuessLimits):
    """When a loss is no mean over targets."""

    no_mean: float = limit(
        4.0,
        unit="times the loss of a uniform guess",
        source="what begins high as a mean, labels that are shifted or shuffled and a base full "
        "of noise, has up to 1.6 times it; runs that a rate destroyed at once reach 2.9 times",
        false_alarms="0 of 22 logs of users, sound and faulty",
    )
    low: float = limit(0.2, unit="nats a target", source="no run begins below")
    high: float = limit(8.0, unit="nats a target", source="a guess among 3,000 tokens")
    alike: float = limit(
        1.5,
        unit="either way, the mean over the validation loss before training",
        source="as loss-level, of accumulation steps",
    )


@dataclass(frozen=True)
class Summed:
    """A loss that is a sum.

    Attributes:
        first: the first training loss.
        uniform: the loss of a uniform guess, nats a target.
        divisor: what makes it a usual mean; None where nothing known does.
        what: what there are so many of.
    """

    first: float
    uniform: float
    divisor: float | None
    what: str

    @property
    def mean(self) -> float | None:
        """The mean over targets, in nats."""
        return self.first / self.divisor if self.divisor else None


def summed_loss(
    segment: Segment,
    config: TrainingConfig | None,
    rows: SupervisedRows | None,
    vocabulary: int | None,
    limits: Limits,
) -> Summed | None:
    """The sum that the log's first training loss is; None where it may be a mean.

    Args:
        segment: of the log.
        config: for rows a batch and accumulation steps.
        rows: for targets a row, where the log does not count them.
        vocabulary: the model's, where it is known.
        limits: what no mean can be.
    """
    losses, finite = segment.get("train_loss"), segment.finite("train_loss").values
    # A later loss does not stand for a first one that is no number.
    if losses is None or not len(finite) or finite[0] != losses.values[0] or segment.is_preference:
        return None
    uniform = limits.blind_guess(vocabulary)
    first, before = float(finite[0]), segment.base_val_loss
    # One report may be that of a model that a step destroyed; all of them are not.
    if float(np.median(finite[: max(3, len(finite) // 4)])) <= limits.no_mean * uniform:
        return None
    level = before if before is not None and 0 < before < uniform else None

    def is_usual(mean: float) -> bool:
        if not limits.low <= mean <= min(limits.high, uniform):
            return False
        return level is None or 1 / limits.alike < mean / level < limits.alike

    steps = (config.grad_accumulation_steps if config is not None else None) or 1
    if steps > 1 and is_usual(first / steps):
        # Means that accumulation adds up are a fault of their own, which loss-level tells.
        return None
    for divisor, what in _divisors(segment, config, rows):
        if is_usual(first / divisor):
            return Summed(first, uniform, divisor, what)
    return Summed(first, uniform, None, "")


def _divisors(
    segment: Segment, config: TrainingConfig | None, rows: SupervisedRows | None
) -> Iterator[tuple[float, str]]:
    """What a sum may be over, the likeliest first."""
    size = config.batch_size if config is not None else None
    steps = (config.grad_accumulation_steps if config is not None else None) or 1
    targets = None
    counted = segment.get("trained_tokens")
    if counted is not None and len(counted) and segment.axis in ("iteration", "step"):
        iterations = int(counted.iterations[0])
        if iterations > 0 and counted.values[0] > 0:
            targets = float(counted.values[0]) / iterations
    elif rows is not None and rows.rows and size:
        targets = size * sum(row.count() for row in rows.rows) / len(rows.rows)
    if targets:
        yield targets, "targets in a batch"
        if steps > 1:
            yield targets * steps, "targets in an update"
        if size and size > 1:
            yield targets / size, "targets in a row"
    if size and size > 1:
        yield float(size), "rows in a batch"
        if steps > 1:
            yield float(size * steps), "rows in an update"
