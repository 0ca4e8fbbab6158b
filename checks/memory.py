"""Memory that runs short: it grows, it is more than there is, or everything slows down.

What it finds. A throughput that falls to a fraction of what it was and stays there; one that
is a fraction of what any machine with so much memory does; a peak of memory that goes on growing
from report to report; and one above the machine's memory, where the log names that.

Why it matters. On unified memory a run that outgrows it starts to swap: it goes on, many times
slower, and may end with an abort or a frozen machine.

How it is measured. The median of tokens a second in the last third of the reports against
that of the first third, the first report left out because it compiles. Single slow reports
do not count, and the run must have used memory worth the name. Where the log counts the model's
parameters, tokens a second times four times the parameters are the arithmetic that was done. A
peak is the highest so far: in a sound run it grows when a longer batch comes, ever more seldom.

When it is wrong. Another job on the machine, a laptop that got hot or went to sleep, and rows
that differ much in length slow a run down too; so does half precision on a Linux processor, ten
times. Rows that are sorted by length let the peak grow to the end. All are warnings, not errors.

What to do. Compare the peak memory with the machine's; train smaller batches or shorter rows,
or set grad_checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Sign, Symptom, Unsought


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
    floor: float = limit(
        20.0,
        unit="GFLOP a second",
        source="the slowest Mac does 2,000; users' slowest logs that are not swapping show 600",
        false_alarms="0 of 22 logs of users",
    )
    records: float = limit(
        0.6,
        unit="share of the reports in the second half that raise the peak",
        source="in a sound run the n-th of equal batches is the longest so far with probability "
        "1/n; users' logs have 0 to 0.3",
        false_alarms="0 of 22 logs of users",
    )
    grown: float = limit(
        1.1, unit="last peak over that at half of the run", source="a tenth in half of a run"
    )
    room: float = limit(
        1.0, unit="of the machine's memory", source="the system and others need some as well"
    )


@check(
    codes={
        "slowed": Symptom.warning(
            "throughput fell for good",
            fix="Compare the peak memory with the machine's; train smaller batches or shorter "
            "rows.",
        ),
        "crawls": Symptom.warning(
            "training is slower than any machine of that memory, unless it swaps",
            fix="Compare the peak memory with the machine's; train smaller batches, shorter rows, "
            "or a quantised model.",
        ),
        "grows": Symptom.warning(
            "the peak of memory grows from report to report",
            expected="a peak that is reached early, with the longest batch",
            fix="See that losses and metrics are evaluated in every step, and that nothing keeps "
            "their arrays.",
        ),
        "more-than-there-is": Symptom.warning(
            "the peak of memory is above the machine's memory",
            expected="a peak below the machine's memory, with room for the system",
            fix="Train smaller batches, shorter rows or fewer layers, or set grad_checkpoint.",
        ),
    },
    limits=Limits(),
)
def memory(log: TrainingLog, limits: Limits) -> Iterator[Sign | Unsought]:
    """Look at the peaks of memory, and at the throughput, by itself and as it changed."""
    speed, peak = log.main.get("tokens_per_second"), log.main.get("peak_memory_gb")
    yield from _crawls(log, limits)
    if peak is not None and len(peak):
        yield from _grows(peak, limits)
        yield from _too_much(log, peak, limits)
    yield from _slowed(speed, peak, limits)


def _slowed(speed: Series | None, peak: Series | None, limits: Limits) -> Iterator[Sign]:
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


def _crawls(log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    speed, peak = log.main.get("tokens_per_second"), log.main.get("peak_memory_gb")
    millions = log.parameters_millions
    is_large = peak is not None and len(peak) > 0 and float(np.max(peak.values)) >= limits.large
    if speed is None or len(speed) < 2 or millions is None or not is_large:
        return
    tokens = float(np.median(speed.values))
    # Forward, and back through frozen weights: two operations a parameter each.
    done = 4.0 * millions * 1e6 * tokens * 1e-9
    if not 0 < done < limits.floor:
        return
    yield Sign(
        "crawls",
        f"{tokens:.3g} tokens a second of a model with {millions:,.0f} million parameters are "
        f"{done:.2g} GFLOP a second: any machine with that much memory does a hundred times more, "
        "unless it swaps.",
        {"tokens_per_second": tokens, "parameters_millions": millions, "gflops": round(done, 3)},
        expected=f"at least {limits.floor:g} GFLOP a second",
    )


def _grows(peak: Series, limits: Limits) -> Iterator[Sign | Unsought]:
    values = peak.finite.values
    if len(values) < limits.enough:
        yield Unsought(("grows",), f"fewer than {limits.enough} reports of memory")
        return
    late = values[len(values) // 2 :]
    records = float((np.diff(late) > 0).mean())
    first, last = float(late[0]), float(late[-1])
    if last < limits.large or records < limits.records or last < limits.grown * first:
        return
    yield Sign(
        "grows",
        f"The peak of memory grew from {float(values[0]):.1f} to {last:.1f} GB, and in the second "
        f"half of the run still in {records:.0%} of the reports: something is kept that should be "
        "let go.",
        {
            "first_gb": float(values[0]),
            "at_half_gb": first,
            "last_gb": last,
            "growing_share": round(records, 3),
        },
    )


def _too_much(log: TrainingLog, peak: Series, limits: Limits) -> Iterator[Sign]:
    stated = log.header.get("machine_memory_gb")
    used = float(np.max(peak.values))
    if stated is None or not used > limits.room * float(stated) > 0:
        return
    first = np.flatnonzero(peak.values > limits.room * float(stated))
    yield Sign(
        "more-than-there-is",
        f"Memory reached {used:.1f} GB on a machine that has {float(stated):.1f} GB by its log.",
        {"peak_memory_gb": used, "machine_memory_gb": float(stated)},
        onset=int(peak.iterations[first[0]]),
    )
