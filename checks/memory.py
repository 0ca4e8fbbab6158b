"""Training slowed down for good, as it does when memory runs short.

What it finds. A throughput that falls to a fraction of what it was and stays there.

Why it matters. On unified memory a run that outgrows it starts to swap: it goes on, many times
slower, and may end with an abort or a frozen machine.

How it is measured. The median of tokens a second in the last third of the reports against
that of the first third, the first report left out because it compiles. Single slow reports
do not count, and the run must have used memory worth the name.

When it is wrong. Another job on the machine, a laptop that got hot or went to sleep, and rows
that differ much in length slow a run down too; so this is a warning, never an error.

What to do. Compare the peak memory with the machine's; train smaller batches or shorter rows,
or set grad_checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom


@dataclass(frozen=True)
class Limits:
    """When a run has slowed down."""

    enough: int = limit(12, unit="reports", source="four in each third")
    slowed: float = limit(
        1 / 3,
        unit="late over early tokens a second",
        source="users' logs on busy machines vary by 2; swapping costs more",
    )
    large: float = limit(
        4.0,
        unit="GB of peak memory",
        source="half of the smallest Mac: below that nothing swaps on its account",
        false_alarms="0 of 36 healthy runs of the fixture model; 1 without this limit",
    )


@check(
    codes={
        "slowed": Symptom.warning(
            "throughput fell for good",
            fix="Compare the peak memory with the machine's; train smaller batches or shorter "
            "rows.",
        )
    },
    limits=Limits(),
)
def memory(log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    """Compare the throughput of the last third of the run with the first."""
    speed, peak = log.main.get("tokens_per_second"), log.main.get("peak_memory_gb")
    if speed is None or len(speed) < limits.enough + 1:
        raise Inconclusive(f"fewer than {limits.enough + 1} reports of throughput")
    if peak is None:
        raise Inconclusive("the log does not say how much memory was used")
    used, values = float(np.max(peak.values)), speed.values[1:]
    third = len(values) // 3
    early, late = float(np.median(values[:third])), float(np.median(values[-third:]))
    if used < limits.large or not (early > 0 and late < limits.slowed * early):
        return
    slow = np.flatnonzero(values < limits.slowed * early)
    yield Sign(
        "slowed",
        f"Throughput fell from {early:,.0f} to {late:,.0f} tokens a second and stayed there.",
        {"early_tokens_per_second": early, "late_tokens_per_second": late, "peak_memory_gb": used},
        expected=f"at least {limits.slowed * early:,.0f} tokens a second to the end",
        onset=int(speed.iterations[1:][slow[0]]),
    )
