"""The run broke off, or the log ends before the run did.

What it finds. Lines that say the run ended by itself: out of memory, an exception, an abort, a
kill, an error of the GPU; a trainer's warnings of batches without a target, or of no data to
validate on; and a log that ends before the iterations it announced. The last exception is quoted,
with the file and line it came from, and where it is one that is known, what it means: rows that
mlx-lm refused, a setting, a model, an adapter, or an error in the code.

Why it matters. A run that broke off leaves its last checkpoint, not its last state, and what
it would have become is unknown. The adapter file in the folder is then older than the log.

How it is measured. Known messages of Metal, CUDA, Python and the shell, looked for in lines
that are not reports. An abort after an out-of-memory message is the same event. A failure
that later reports follow was survived, or belongs to an earlier attempt in the same file.
Exceptions are looked up in a list of those that mlx-lm 0.32.2, MLX and the packages below them
raise, by their type, their message, and the functions on the way.

When it is wrong. A log that was cut for a post ends early too, so an early end by itself is
only noted. A message quoted in the training data's own text is not told apart if the trainer
prints rows.

What to do. Out of memory: smaller batches, fewer layers, a shorter max_seq_length, gradient
checkpointing. Then resume from the last save the log mentions. An exception: what the finding
says, which is made for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from mlxdoctor.bugs.exceptions import Meaning, meaning_of
from mlxdoctor.check import check, limit
from mlxdoctor.evidence.training_log import LogFailure, TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.safety.quoting import MAX_LINE, quoted

_READ = "Read the line quoted; then resume from the last save."
_SMALLER = "Halve batch_size or max_seq_length, or set grad_checkpoint; then resume."
_KILLED = "The system kills what takes too much memory: watch it, and train a smaller batch."
_CORRECT = "Read the exception: correct the line that it names, or what that line was given."


_ENDED = "a log that ends with the final save"
_FAILURES = {
    "out-of-memory": Symptom.error("the run ran out of memory", _ENDED, _SMALLER),
    "traceback": Symptom.error("the run ended with an exception", _ENDED, _CORRECT),
    "killed": Symptom.error("the run was killed", _ENDED, _KILLED),
    "aborted": Symptom.error("the process aborted", _ENDED, _READ),
    "gpu-error": Symptom.error("the GPU reported an error", _ENDED, _READ),
    "interrupted": Symptom.warning("the run was interrupted by hand", _ENDED, _READ),
}
#: What exceptions that are known mean: mlxdoctor/bugs/exceptions.toml sorts them into these.
_MEANINGS = {
    "rows-refused": Symptom.error("the run ended with an exception: rows were refused", _ENDED),
    "validation-refused": Symptom.error(
        "the run ended with an exception: too few rows to validate on", _ENDED
    ),
    "template-missing": Symptom.error(
        "the run ended with an exception: the model has no chat template", _ENDED
    ),
    "setting-refused": Symptom.error(
        "the run ended with an exception: a setting was refused", _ENDED
    ),
    "model-refused": Symptom.error(
        "the run ended with an exception: the model could not be loaded", _ENDED
    ),
    "adapter-refused": Symptom.error(
        "the run ended with an exception: the adapter could not be loaded", _ENDED
    ),
    "environment-lacking": Symptom.error(
        "the run ended with an exception: the machine lacks something", _ENDED
    ),
    "code-error": Symptom.error(
        "the run ended with an exception: the training code has an error", _ENDED
    ),
    "shapes-disagree": Symptom.error(
        "the run ended with an exception: shapes do not go together", _ENDED
    ),
    "loss-refused": Symptom.error(
        "the trainer stopped itself at a loss or gradient that is no number", _ENDED
    ),
}
#: Characters of an exception in the sentence; `measured` has more.
MAX_SHOWN = 160
#: Folders of a path that are shown.
MAX_PARTS = 5
#: Folders in which packages lie.
_PACKAGES = ("site-packages", "dist-packages")
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
        **_MEANINGS,
        "batches-without-targets": Symptom.warning(
            "the trainer warned of batches with nothing to learn",
            expected="at least one supervised token in every batch",
            fix="shorten the prompts or raise the limit so that an answer fits, and divide the "
            "loss by mx.maximum(mask.sum(), 1)",
        ),
        "nothing-to-validate-on": Symptom.warning(
            "the trainer said that it found no validation data, and trained without",
            expected="validation losses beside the training losses",
            fix="move a tenth of the rows to valid.jsonl, and train again to see when the loss on "
            "them stops falling",
        ),
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
    if log.targetless:
        count, first = len(log.targetless), log.targetless[0]
        often = "once" if count == 1 else f"{count} times"
        yield Sign(
            "batches-without-targets",
            f"The trainer warned {often} that a batch had nothing to learn (line {first} of the "
            "log): unless the trainer guards the division, the mean of its loss is 0/0.",
            {"warnings": count, "line": first},
            where=f"line {first}",
        )
    validation = segment.get("val_loss")
    if log.unvalidated and (validation is None or not len(validation)):
        first = log.unvalidated[0]
        yield Sign(
            "nothing-to-validate-on",
            f"The trainer said that it found no validation data (line {first} of the log), and "
            "there is no validation loss: no figure of the log shows whether the model only "
            "learned its rows by heart.",
            {"line": first},
            where=f"line {first}",
        )
    announced = segment.announced_iterations
    if fatal or announced is None or reached is None or segment.axis not in ("iteration", "step"):
        return
    # A report that would come next must fit before the announced end.
    if reached < limits.unfinished * announced:
        yield Sign(
            "ends-early",
            f"The log ends at {segment.unit} {reached} of {announced}.",
            {"reached": reached, "announced": announced, "last_save": _last_save(log)},
            expected=f"reports up to {segment.unit} {announced}",
            onset=reached,
        )


def _failure(
    failures: list[LogFailure], log: TrainingLog, reached: int | None, *, ended: bool
) -> Sign:
    worst = _most_telling(failures)
    memory = log.main.get("peak_memory_gb")
    meaning = _meaning(worst) if ended else None
    story = _FAILURES[worst.kind].meaning
    if not ended:
        story += ", and reports follow"
    elif reached is not None:
        story += f" after {log.main.unit} {reached}"
    place = _short(worst.place)
    at = f"{place}; line" if place else "line"
    text = quoted(worst.text, MAX_LINE)
    short = quoted(worst.text, MAX_SHOWN)
    quotation = f": {short}" if worst.kind == "traceback" and worst.text[:9] != "Traceback" else ""
    sentence = f"{story[0].upper()}{story[1:]} ({at} {worst.line_number} of the log){quotation}."
    return Sign(
        meaning.finding if meaning is not None else worst.kind,
        f"{sentence} {meaning.says}" if meaning is not None else sentence,
        {
            "line": worst.line_number,
            "text": text,
            "raised_at": place or None,
            "last_iteration": reached,
            "announced": log.main.announced_iterations,
            "last_save": _last_save(log),
            "peak_memory_gb": float(memory.values[-1]) if memory is not None else None,
        },
        where=place or f"line {worst.line_number}",
        onset=reached if ended else None,
        severity=None if ended else Severity.INFO,
        fix=f"{meaning.remedy[0].upper()}{meaning.remedy[1:]}." if meaning is not None else None,
    )


def _most_telling(failures: list[LogFailure]) -> LogFailure:
    """The failure that the others follow from; of exceptions the last, which ended the run."""
    kind = min((one.kind for one in failures), key=_TELLING.index)
    of_kind = [one for one in failures if one.kind == kind]
    return of_kind[-1 if kind == "traceback" else 0]


def _meaning(failure: LogFailure) -> Meaning | None:
    return meaning_of(failure) if failure.kind in ("traceback", "out-of-memory") else None


def _short(place: str) -> str:
    """The end of a long path: the file and the folder it is in, or its place in a package."""
    path, _, line = place.rpartition(":")
    parts = PurePath(path.replace("\\", "/")).parts
    for folder in _PACKAGES:
        if folder in parts:
            return f"{'/'.join(parts[parts.index(folder) + 1 :])}:{line}"
    shown = path if len(parts) <= MAX_PARTS and not path.startswith("/") else "/".join(parts[-2:])
    return f"{shown}:{line}" if place else ""


def _last_save(log: TrainingLog) -> int | None:
    return max((one.iteration for one in log.saves if one.iteration is not None), default=None)
