"""Whether the run kept what preflight promised.

What it finds. A peak of memory above the predicted one, and iterations that take longer than the
steps that were timed before the run.

Why it matters. What differs from the plan was not planned: longer rows than those that were looked
at, other programs on the machine, a setting that was changed in between.

How it is measured. `preflight` writes preflight.json beside its report. Named with the run, or put
into its folder, it is held against the log's highest peak of memory and the median of its
iterations a second.

When it is wrong. On another machine than the one that preflight ran on. Peaks are predicted within
15% (reports/preflight-memory.md), paces within 20% on an idle machine.

What to do. Run preflight again with the configuration as it is now, and compare.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.promise import Promise
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Seen, Severity, Sign, Symptom


@dataclass(frozen=True)
class Limits:
    """When a promise was not kept."""

    memory: float = limit(
        1.3, unit="times the predicted peak", source="twice the 15% that it is predicted within"
    )
    pace: float = limit(
        1.5, unit="times the slowest pace promised", source="a busy machine is half as fast"
    )


@check(
    codes={
        "more-memory": Symptom.warning(
            "the run took more memory than preflight promised",
            expected="the predicted peak",
            fix="run preflight again with the configuration and the rows as they are now",
        ),
        "slower": Symptom.info(
            "the run was slower than the steps that preflight timed",
            expected="the pace of the timed steps",
        ),
    },
    limits=Limits(),
)
def promised(promise: Promise, log: TrainingLog, limits: Limits) -> Iterator[Sign | Seen]:
    """Hold peak and pace against the promise."""
    peak, pace = log.main.get("peak_memory_gb"), log.main.get("iterations_per_second")
    compared = False
    if peak is not None and len(peak) and np.isfinite(peak.values).any():
        compared = True
        used, told = float(np.nanmax(peak.values)), promise.peak / 1e9
        measured = {"peak_memory_gb": used, "promised_gb": told}
        if used > limits.memory * told:
            yield Sign(
                "more-memory",
                f"The log's highest peak of memory is {used:.3g} GB; preflight promised "
                f"{told:.3g} GB.",
                measured,
                severity=Severity.INFO if promise.is_rough else None,
            )
        else:
            yield Seen(
                f"The peak of memory is {used:.3g} GB; preflight promised {told:.3g} GB.", measured
            )
    if promise.seconds_an_iteration is not None and pace is not None and len(pace):
        each, slowest = float(np.median(pace.values)), promise.seconds_an_iteration[1]
        compared = True
        if each > 0 and 1 / each > limits.pace * slowest:
            yield Sign(
                "slower",
                f"An iteration took {1 / each:.2g} s (median of {len(pace)} reports); the steps "
                f"that preflight timed promised {slowest:.2g} s at most.",
                {"seconds": 1 / each, "promised_seconds": slowest},
            )
    if not compared:
        raise Inconclusive("the log says nothing of memory or pace")
