"""When a loss stands far above a level: the limits that checks, bisect and the trainer share.

Each compares a loss with a level by `above`: times as high and so many nats higher, since a ratio
alone makes much of small losses, and nats alone of large ones.

The watch looks again at every report and may end a training. Its false alarms are bounded by a
test of its own (`mlxdoctor.watch.monitor`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mlxdoctor.check import limit
from mlxdoctor.engines.series import SeriesFacts
from mlxdoctor.evidence.training_log import Segment

CALIBRATION = "0 of 36 healthy runs of the fixture model, 0 of 4 healthy users' logs"


@dataclass(frozen=True)
class Limits:
    """When a loss has left a level."""

    diverged_nats: float = limit(
        0.5, unit="nats above a level", source="one noisy batch", false_alarms=CALIBRATION
    )
    exploded_ratio: float = limit(
        1.5,
        unit="loss over the level before",
        source="told 15 faulty QLoRA runs from 3 healthy ones without error",
        false_alarms=CALIBRATION,
    )
    overfitted: float = limit(
        1.2,
        unit="last validation loss over its minimum",
        source="told 15 faulty QLoRA runs from 3 healthy ones without error",
        false_alarms=CALIBRATION,
    )
    risen_ratio: float = limit(
        1.15,
        unit="end over minimum, of training and of validation losses alike",
        source="healthy runs end within 1.10 of either minimum",
        false_alarms=CALIBRATION,
    )
    risen_nats: float = limit(
        0.2, unit="nats", source="small losses double and halve with the batch"
    )


def above(loss: Any, level: Any, ratio: float, nats: float) -> Any:
    """Whether losses, float or float64 (n,), are both `ratio` times and `nats` above a level."""
    return (loss > ratio * level) & (loss - level > nats)


@dataclass(frozen=True)
class Start:
    """Where a run began.

    Attributes:
        loss: in nats.
        is_base: whether it is the validation loss before the first update; else the first report.
    """

    loss: float
    is_base: bool


def start_of(segment: Segment, curve: SeriesFacts) -> Start:
    """The untouched model's loss where the log has it, else the first that was reported."""
    base = segment.base_val_loss
    if base is not None and math.isfinite(base) and base > 0:
        return Start(base, True)
    return Start(curve.first, False)
