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

from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import check, limit
from mlxdoctor.evidence.training_log import LogFailure, TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.safety.quoting import MAX_LINE, quoted

_READ = "Read the line quoted; then resume from the last save."
_SMALLER = "Halve batch_size or max_seq_length, or set grad_checkpoint; then resume."
_KILLED = "The system kills what takes too much memory: watch it, and train a smaller batch."


_ENDED = "a log that ends with the final save"
_FAILURES = {
    "out-of-memory": Symptom.error("the run ran out of memory", _ENDED, _SMALLER),
    "traceback": Symptom.error("the run ended with an exception", _ENDED, _READ),
    "killed": Symptom.error("the run was killed", _ENDED, _KILLED),
    "aborted": Symptom.error("the process aborted", _ENDED, _READ),
    "gpu-error": Symptom.error("the GPU reported an error", _ENDED, _READ),
    "interrupted": Symptom.warning("the run was interrupted by hand", _ENDED, _READ),
}
#: What a crash shows as, most telling first: later kinds follow from earlier ones.
_TELLING = ("out-of-memory", "gpu-error", "traceback", "killed", "aborted", "interrupted")


@dataclass(frozen=True)
class Limits:
    """When a log ends early."""

    unfinished: float = limit(
        0.98,
        unit="share of the announced iterations",
        source="the last report may come a few iterations before the end",
    )


@check(
    codes={
        **_FAILURES,
        "ends-early": Symptom.info(
            "the log ends before the iterations it announced",
            fix="If the log is complete, the run broke off: resume from the last save.",
        ),
    },
    limits=Limits(),
)
def log_failures(log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    """Report the most telling failure of each stretch of the log, and an early end."""
    segment = log.main
    fatal = [one for one in log.failures if one.line_number > segment.last_line]
    survived = [one for one in log.failures if one.line_number <= segment.last_line]
    reached = max((int(one.iterations[-1]) for one in segment.series.values()), default=None)
    if fatal:
        yield _failure(fatal, log, reached, ended=True)
    if survived:
        yield _failure(survived, log, reached, ended=False)
    announced = segment.announced_iterations
    if fatal or announced is None or reached is None or segment.axis not in ("iteration", "step"):
        return
    # A report that would come next must fit before the announced end.
    if reached < limits.unfinished * announced:
        yield Sign(
            "ends-early",
            f"The log ends at iteration {reached} of {announced}.",
            {"reached": reached, "announced": announced, "last_save": _last_save(log)},
            expected=f"reports up to iteration {announced}",
            onset=reached,
        )


def _failure(
    failures: list[LogFailure], log: TrainingLog, reached: int | None, *, ended: bool
) -> Sign:
    worst = min(failures, key=lambda one: (_TELLING.index(one.kind), one.line_number))
    memory = log.main.get("peak_memory_gb")
    story = _FAILURES[worst.kind].meaning
    if not ended:
        story += ", and reports follow"
    elif reached is not None:
        story += f" after iteration {reached}"
    return Sign(
        worst.kind,
        f"{story[0].upper()}{story[1:]} (line {worst.line_number} of the log).",
        {
            "line": worst.line_number,
            "text": quoted(worst.text, MAX_LINE),
            "last_iteration": reached,
            "announced": log.main.announced_iterations,
            "last_save": _last_save(log),
            "peak_memory_gb": float(memory.values[-1]) if memory is not None else None,
        },
        where=f"line {worst.line_number}",
        onset=reached if ended else None,
        severity=None if ended else Severity.INFO,
    )


def _last_save(log: TrainingLog) -> int | None:
    return max((one.iteration for one in log.saves if one.iteration is not None), default=None)
