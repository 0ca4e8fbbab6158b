"""A validation that took no time.

What it finds. Validations that the log reports with a duration of zero.

Why it matters. A loss takes a pass over at least one batch. One that took no time is 0/0, or a
figure that was kept from before: it says nothing about the model.

How it is measured. The seconds that the log prints beside its validation losses.

When it is wrong. A log that rounds to whole seconds can't tell where updates are quick, and is
not judged then.

What to do. Count the rows of the validation split and compare them with the batch size, and see
that `val_batches` is not 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom


@dataclass(frozen=True)
class Limits:
    """When a validation took no time."""

    share: float = limit(
        0.5,
        unit="share of the validations",
        source="one may be printed wrongly",
        false_alarms="0 of 22 logs of users",
    )
    part: float = limit(
        0.2, unit="of the time of an update", source="a pass forward takes a third of it"
    )
    rounded: float = limit(
        1.0, unit="seconds that a batch takes", source="what is printed as 0 s took less than half"
    )


@check(
    codes={
        "no-time": Symptom.warning(
            "validations took no time at all",
            expected="at least the time of one batch",
            fix="give the validation split at least a batch of rows, and set val_batches to -1",
        )
    },
    limits=Limits(),
)
def validation_time(log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    """Look at how long each validation took."""
    seconds, speed = log.main.get("val_seconds"), log.main.get("iterations_per_second")
    if seconds is None or not len(seconds):
        raise Inconclusive("the log does not say how long a validation took")
    none = int((seconds.values == 0.0).sum())
    if none < max(1.0, limits.share * len(seconds)):
        return
    # mlx-lm prints milliseconds; others may round to seconds.
    is_exact = bool((seconds.values % 1.0 > 0).any()) or "iter lines" in log.format
    if not is_exact:
        if speed is None or float(np.median(speed.values)) <= 0:
            raise Inconclusive("durations may be rounded to seconds, and no speed is known")
        if limits.part / float(np.median(speed.values)) < limits.rounded:
            raise Inconclusive("durations may be rounded to seconds, and updates are quick")
    yield Sign(
        "no-time",
        f"{none} of {len(seconds)} validations took 0 seconds by the log: no batch was looked at.",
        {"validations": len(seconds), "without_time": none},
        onset=int(seconds.iterations[0]),
    )
