"""The run broke off, or the log ends before the run did.

What it finds. Lines that say the run ended by itself: out of memory, a traceback, an abort,
a kill, an error of the GPU; and a log that ends before the iterations it announced.

Why it matters. A run that broke off leaves its last checkpoint, not its last state, and what
it would have become is unknown. The adapter file in the folder is then older than the log.

How it is measured. Known messages of Metal, CUDA, Python and the shell, looked for in lines
that are not reports. An abort after an out-of-memory message is the same event. A failure
that later reports follow was survived, or belongs to an earlier attempt in the same file.

When it is wrong. A log that was cut for a post ends early too, so an early end by itself is
only noted. A message quoted in the training data's own text is not told apart if the trainer
prints rows.

What to do. Out of memory: smaller batches, fewer layers, a shorter max_seq_length, gradient
checkpointing. Then resume from the last save the log mentions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import check, limit
from mlxdoctor.evidence.training_log import LogFailure, TrainingLog
from mlxdoctor.finding import Finding, Measurement, Severity
from mlxdoctor.safety.quoting import MAX_LINE, quoted

_MEANINGS = {
    "out-of-memory": "the run ran out of memory",
    "traceback": "the run ended with an exception",
    "killed": "the run was killed",
    "aborted": "the process aborted",
    "gpu-error": "the GPU reported an error",
    "interrupted": "the run was interrupted by hand",
}
#: What a crash shows as, most telling first: later kinds follow from earlier ones.
_TELLING = ("out-of-memory", "gpu-error", "traceback", "killed", "aborted", "interrupted")
_FIXES = {
    "out-of-memory": "Halve batch_size or max_seq_length, or set grad_checkpoint; then resume.",
    "killed": "The system kills what takes too much memory: watch it, and train a smaller batch.",
}


@dataclass(frozen=True)
class Limits:
    """When a log ends early."""

    unfinished: float = limit(
        0.98,
        unit="share of the announced iterations",
        source="the last report may come a few iterations before the end",
    )


@check(
    codes={**_MEANINGS, "ends-early": "the log ends before the iterations it announced"},
    limits=Limits(),
)
def log_failures(log: TrainingLog, limits: Limits) -> Iterator[Finding]:
    """Report the most telling failure of each stretch of the log, and an early end."""
    last_report = log.main.last_line
    fatal = [one for one in log.failures if one.line_number > last_report]
    survived = [one for one in log.failures if one.line_number <= last_report]
    for failures, severity in ((fatal, Severity.ERROR), (survived, Severity.INFO)):
        if failures:
            yield _finding(failures, severity, log)
    if fatal:
        return
    announced, segment = log.main.announced_iterations, log.main
    if announced is None or not segment.series or segment.axis not in ("iteration", "step"):
        return
    reached = max(int(one.iterations[-1]) for one in segment.series.values())
    # A report that would come next must fit before the announced end.
    if reached >= limits.unfinished * announced:
        return
    yield Finding(
        "log-failures.ends-early",
        Severity.INFO,
        f"The log ends at iteration {reached} of {announced}.",
        {"reached": reached, "announced": announced, "last_save": _last_save(log)},
        expected=f"reports up to iteration {announced}",
        onset=reached,
        fix="If the log is complete, the run broke off: resume from the last save.",
    )


def _finding(failures: list[LogFailure], severity: Severity, log: TrainingLog) -> Finding:
    worst = min(failures, key=lambda one: (_TELLING.index(one.kind), one.line_number))
    if worst.kind == "interrupted" and severity is Severity.ERROR:
        severity = Severity.WARNING
    segment = log.main
    reached = [int(one.iterations[-1]) for one in segment.series.values()]
    memory = segment.get("peak_memory_gb")
    measured: dict[str, Measurement] = {
        "line": worst.line_number,
        "text": quoted(worst.text, MAX_LINE),
        "last_iteration": max(reached, default=None),
        "announced": segment.announced_iterations,
        "last_save": _last_save(log),
        "peak_memory_gb": float(memory.values[-1]) if memory is not None else None,
    }
    after = f" after iteration {max(reached)}" if reached and severity is not Severity.INFO else ""
    story = _MEANINGS[worst.kind]
    if severity is Severity.INFO:
        story += ", and reports follow"
    return Finding(
        f"log-failures.{worst.kind}",
        severity,
        f"{story[0].upper()}{story[1:]}{after} (line {worst.line_number} of the log).",
        measured,
        expected="a log that ends with the final save",
        where=f"line {worst.line_number}",
        onset=max(reached, default=None) if severity is not Severity.INFO else None,
        fix=_FIXES.get(worst.kind, "Read the line quoted; then resume from the last save."),
    )


def _last_save(log: TrainingLog) -> int | None:
    return max((one.iteration for one in log.saves if one.iteration is not None), default=None)
