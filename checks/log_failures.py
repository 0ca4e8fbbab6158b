"""The run broke off, or the log ends before the run did.

What it finds. What ended the run, in the words of the log, with the file and line that an exception
came from and what it means where that is known; a trainer's warnings of batches without a target,
of rows that it cut, or of training rows that it validates on; and a log that ends before the
iterations it announced.

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

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import PurePath

import numpy as np

from mlxdoctor.bugs.exceptions import meaning_of
from mlxdoctor.check import check
from mlxdoctor.evidence.training_log import LogFailure, TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.judge.course import closing
from mlxdoctor.judge.extent import extent
from mlxdoctor.safety.quoting import MAX_LINE, quoted

_ENDED = "a log that ends with the final save"
_READ = "Read the line quoted; then resume from the last save."
#: A failure, with where it was raised and what it means, where that is known.
_FAILED = "{story} ([{raised_at}; ]line {line} of the log)[: {exception}].[ {says}]"
_REMEDY = "[{remedy}.]"


def _failure_of(meaning: str, fix: str) -> Symptom:
    return Symptom.error(meaning, _ENDED, fix, says=_FAILED)


#: What a crash shows as, most telling first: later kinds follow from earlier ones.
_FAILURES = {
    "out-of-memory": _failure_of(
        "the run ran out of memory",
        "[{remedy}.|Halve batch_size or max_seq_length, or set grad_checkpoint; then resume.]",
    ),
    "gpu-error": _failure_of(
        "the GPU reported an error",
        "Close what else uses the GPU, and resume from the last save. Where it ends at the same "
        "place again, train smaller batches or shorter rows.",
    ),
    "disk-full": _failure_of(
        "a file could not be written: the disk is full",
        "Free the disk, keep fewer saves, and resume from the last whole one.",
    ),
    "traceback": _failure_of(
        "the run ended with an exception",
        "Read the exception and the lines above it: correct the line that they name, what that "
        "line was given, or the package that it is in.",
    ),
    "killed": _failure_of(
        "the run was killed",
        "The system kills what takes too much memory: watch it, and train a smaller batch.",
    ),
    "aborted": _failure_of("the process aborted", _READ),
    "interrupted": Symptom.warning("the run was interrupted", _ENDED, _READ, says=_FAILED),
}
#: What is said of one that did not end the run.
_BESIDE = {"traceback": "there was an exception"}
#: What exceptions that are known mean: mlxdoctor/bugs/exceptions.toml sorts them into these.
_MEANINGS = {
    code: _failure_of(f"the run ended with an exception: {meaning}", _REMEDY)
    for code, meaning in {
        "rows-refused": "rows were refused",
        "validation-refused": "too few rows to validate on",
        "template-missing": "the model has no chat template",
        "setting-refused": "a setting was refused",
        "model-refused": "the model could not be loaded",
        "adapter-refused": "the adapter could not be loaded",
        "environment-lacking": "the machine lacks something",
        "code-error": "the training code has an error",
        "shapes-disagree": "shapes do not go together",
        "loss-refused": "the trainer stopped itself at a loss or gradient that is no number",
    }.items()
}
#: Characters of an exception in the sentence; `measured` has more.
MAX_SHOWN = 160
#: Folders of a path that are shown.
MAX_PARTS = 5
#: Share of the announced iterations: the last report may come a few before the end.
UNFINISHED = 0.98
#: Lines before the last report in which the bar of its step may be drawn.
DRAWN = 2
#: Folders in which packages lie.
_PACKAGES = ("site-packages", "dist-packages")


@check(
    codes={
        **_FAILURES,
        **_MEANINGS,
        "batches-without-targets": Symptom.warning(
            "the trainer warned of batches with nothing to learn",
            "at least one supervised token in every batch",
            "shorten the prompts or raise the limit so that an answer fits, and divide the loss by "
            "mx.maximum(mask.sum(), 1)",
            says="The trainer gave {warnings:* warning} of a batch that had nothing to learn (line "
            "{line} of the log): unless it guards the division, the mean of its loss is 0/0.",
        ),
        "validation-copied": Symptom.warning(
            "the training rows are validated on",
            "validation rows that are not trained on",
            "Move a tenth of the rows to valid.jsonl, and train again on the others.",
            says="The validation rows are a copy of the training rows (line {line} of the log): "
            "their loss shows nothing of other rows.",
        ),
        "rows-cut": Symptom.info(
            "the trainer cut rows at its limit on their length",
            "rows shorter than max_seq_length",
            "Raise max_seq_length above the longest row, or split long rows: their answers are "
            "what is cut.",
            says="The trainer warned {warnings:* time} of rows longer than its limit, which it "
            "cuts (first in line {line} of the log).",
        ),
        "ends-early": Symptom.info(
            "the log ends before the iterations it announced",
            "reports up to {unit} {announced}",
            "If the log is complete, the run broke off: resume from the last save.",
            says="The log ends at {unit} {reached} of {announced}.",
        ),
    },
)
def log_failures(log: TrainingLog) -> Iterator[Sign | Seen]:
    segment = log.main
    reached, announced, unit = _reached(log), segment.announced_iterations, segment.unit
    is_short = _is_short(log, reached)
    drawn, total, drawn_at = _bar(log)
    is_open = drawn < UNFINISHED * total and not _is_summed_up(log)
    is_untold = segment.axis in ("row", "epoch") or (announced is None and drawn >= (reached or 0))
    if is_untold and is_open:
        reached, announced, unit, is_short = drawn, total, "step", True
    # What breaks off once the training is over is a later program, or a later cell.
    ended = sorted([*log.notes.ended, *log.notes.cells])
    ends = [line for line in ended if line > segment.last_line > 0 and not is_short]
    # Of more steps than there are reports, drawn to its end: that of the training.
    ends += [drawn_at] if drawn == total > segment.reports > 0 and not is_short else []
    over = min(ends, default=math.inf)
    failures = [each for each in log.notes.failures if not each.is_of_thread]
    of_threads = [each for each in log.notes.failures if each.is_of_thread]
    # Of a log without a report an earlier start, where a later one begins or came to its end.
    begun = segment.last_line or max([*ended, *log.notes.run_marks], default=0)
    fatal = [each for each in failures if begun <= each.line_number <= over]
    survived = [each for each in failures if each.line_number < begun]
    later = [each for each in failures if each.line_number > over]
    if fatal:
        bars = log.notes.bars if reached is None else {}
        steps, (step, _) = next(reversed(bars.items()), (0, (0, 0)))
        when = f" at step {step:,} of {steps:,}" if step else ""
        if reached is not None:
            is_part = announced is not None and reached < announced
            when = f" after {segment.unit} {reached}{f' of {announced}' if is_part else ''}"
        if reached is not None and reached <= 1 and not len(segment.finite("train_loss")):
            when = " before the first update"
        yield replace(_failure(fatal, log, when), onset=reached)
        exceptions = [each for each in fatal if each.kind == "traceback"]
        if exceptions and len(exceptions) < len(fatal):
            yield _failure(exceptions, log, " as well", ended=False)
    if survived:
        follows = "reports follow" if segment.reports else "a later start follows"
        yield _failure(survived, log, f", and {follows}", ended=False)
    if of_threads:
        when = " in a thread of its own, or an ignored one, which does not end the program"
        yield _failure(of_threads, log, when, ended=False)
    if later:
        yield _failure(later, log, " after the training was over", ended=False)
    yield from _warned(log)
    if is_short and not fatal:
        measured: dict[str, Measurement] = {"reached": reached, "announced": announced}
        yield Sign("ends-early", {"unit": unit, **measured}, onset=reached)
    yield from _without_loss(log)


def _reached(log: TrainingLog) -> int | None:
    """The last iteration that the log knows of; None without a report."""
    segment = log.main
    places = [segment.last] if segment.last is not None else []
    if places and segment.is_counted and len(log.segments) == 1:
        # A save may be the last that is heard of it.
        places += [save.iteration for save in log.notes.saves if save.iteration is not None]
        places += [int(float(log.notes.header.get("global_step", 0)))]
    return max(places, default=None)


def _bar(log: TrainingLog) -> tuple[int, int, int]:
    """How far the longest bar at the last report or behind it came, of how much, in which line."""
    bars = [
        (step, total, line)
        for total, (step, line) in log.notes.bars.items()
        if line >= log.main.last_line - DRAWN > 0
    ]
    return max(bars, key=itemgetter(1), default=(0, 0, 0))


def _is_summed_up(log: TrainingLog) -> bool:
    """Whether the trainer sums up, as trainers do when they are done."""
    return bool(log.notes.mean_losses or closing(log.main))


def _is_short(log: TrainingLog, reached: int | None) -> bool:
    """Whether the log ends before the iterations that it announced."""
    segment = log.main
    announced = segment.announced_iterations
    if reached is None or announced is None or not segment.is_counted:
        return False
    if _is_summed_up(log):
        return False
    losses = segment.get("train_loss")
    steps = np.diff(losses.iterations) if losses is not None else ()
    # A report that would come next must fit before the announced end, which a count from 0 never
    # reaches.
    interval = int(np.median(steps)) if len(steps) else 0
    is_from_zero = losses is not None and int(losses.iterations[0]) == 0
    last = announced - is_from_zero
    return reached < UNFINISHED * announced and reached + interval <= last


def _warned(log: TrainingLog) -> Iterator[Sign]:
    """What the trainer said of its rows."""
    notes = log.notes
    if notes.copied:
        first = notes.copied[0]
        yield Sign("validation-copied", {"line": first}, where=f"line {first}")
    for code, lines in (("rows-cut", notes.cut), ("batches-without-targets", notes.targetless)):
        if lines:
            figures = {"warnings": len(lines), "line": lines[0]}
            yield Sign(code, figures, where=f"line {lines[0]}")


def _without_loss(log: TrainingLog) -> Iterator[Seen]:
    """What a log says in which no loss could be read."""
    header, told = log.notes.header, extent(log)
    steps = header.get("steps", "").replace(",", "")
    step, _ = log.notes.bars.get(int(steps), (None, 0)) if steps.isdecimal() else (None, 0)
    told += [f"{steps} updates"] if steps and step is None else []
    if told and not (log.notes.mean_losses or log.main.reports):
        yield Seen(
            "No loss could be read in the log[: it ends at step {step} of {steps}]. It speaks of "
            "{told}.",
            {"step": step, "steps": header.get("steps"), "told": "; ".join(told)},
        )


def _failure(
    failures: Sequence[LogFailure], log: TrainingLog, when: str, *, ended: bool = True
) -> Sign:
    # The failure that the others follow from; of exceptions the last, which ended the run, and the
    # first of a run that did not come to a report.
    kind = min((failure.kind for failure in failures), key=[*_FAILURES].index)
    of_kind = [failure for failure in failures if failure.kind == kind]
    worst = of_kind[-1 if kind == "traceback" and log.main.reports else 0]
    is_explained = ended and worst.kind in ("traceback", "out-of-memory")
    meaning = meaning_of(worst) if is_explained else None
    meant = _FAILURES[worst.kind].meaning
    story = (meant if ended else _BESIDE.get(worst.kind, meant)) + when
    place = _short(worst.place)
    is_quoted = worst.kind in ("traceback", "gpu-error") and worst.text[:9] != "Traceback"
    memory = log.main.get("peak_memory_gb")
    remedy = meaning.remedy if meaning is not None else None
    return Sign(
        meaning.finding if meaning is not None else worst.kind,
        {
            "story": f"{story[0].upper()}{story[1:]}",
            "line": worst.line_number,
            "text": quoted(worst.text, MAX_LINE),
            "exception": quoted(worst.text, MAX_SHOWN) if is_quoted else None,
            "says": meaning.says if meaning is not None else None,
            "remedy": f"{remedy[0].upper()}{remedy[1:]}" if remedy else None,
            "raised_at": place or None,
            "peak_memory_gb": float(memory.values[-1]) if memory is not None else None,
        },
        where=place or f"line {worst.line_number}",
        severity=None if ended else Severity.INFO,
    )


def _short(place: str) -> str:
    """The end of a long path: the file and the folder it is in, or its place in a package."""
    path, _, line = place.rpartition(":")
    parts = PurePath(path.replace("\\", "/")).parts
    for folder in _PACKAGES:
        if folder in parts:
            return f"{'/'.join(parts[parts.index(folder) + 1 :])}:{line}"
    shown = path if len(parts) <= MAX_PARTS and not path.startswith("/") else "/".join(parts[-2:])
    return f"{shown}:{line}" if place else ""
