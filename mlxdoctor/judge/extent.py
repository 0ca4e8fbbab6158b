"""What a log tells of its run besides the losses: rows, passes, rates, warnings."""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.evidence.logs.series import LEVELS, Remark
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Seen
from mlxdoctor.judge.curve import is_warm_up
from mlxdoctor.safety.quoting import quoted
from mlxdoctor.template import duration

#: Passes over the rows that none makes: a count of steps.
MANY_PASSES = 1000.0
#: Seconds from which on a progress bar's time is told. How many times slower or faster its second
#: half is where both are told, as of 3 in 29 public logs, and at most: a run that goes on skips
#: rows at first, 280 times as fast in one of these.
LONG, CHANGED, SKIPPED = 600.0, 1.5, 20.0
#: Warnings and restarts that are told, lines with scores, and characters that are quoted of one.
MOST, SCORES, SHOWN = 3, 4, 100


def passes_told(log: TrainingLog) -> float:
    """How often a run went over its rows, as far as the log says it; 0 where it does not."""
    own = log.main.finite("epoch").facts.last
    # What a trainer's state or its summary says is further than the last report.
    return float(log.notes.header.get("epoch", own)) if is_alone(log) else own


def is_alone(log: TrainingLog) -> bool:
    """Whether a log is of one run: of several it is not known which a header's figure is of."""
    return len(log.segments) < 2


def _passes(log: TrainingLog) -> list[str]:
    """How often a run went over its rows, or how far its epochs came, in at most one clause."""
    header, passes, epochs = log.notes.header, passes_told(log), log.notes.header.get("epochs")
    of_all = f" of {epochs}" if epochs else ""
    counted = log.main.finite("epoch").values
    if len(counted) and "epoch" not in header and bool(np.all(counted == np.rint(counted))):
        # A counter may begin at 0 or at 1, and an epoch that is named need not be over.
        return [f"epoch {counted[-1]:.0f}{of_all} at the end"]
    if 0.0 < passes < MANY_PASSES:
        made = f"{passes:.3g}{of_all}"
        return [f"{made} pass{'' if made == '1' else 'es'} over the rows"]
    return [f"{epochs} epochs"] if epochs else []


def extent(log: TrainingLog) -> list[str]:
    """What a log tells of the run besides its losses, in clauses: rows, passes, rate and so on."""
    header, segment = log.notes.header, log.main
    rates, rows = segment.finite("learning_rate").facts, header.get("rows")
    told = [f"{rows} rows to train on"] if rows and is_alone(log) else []
    told += _passes(log)
    if is_alone(log) and (seconds := float(header.get("runtime", 0.0))):
        told.append(f"{duration(seconds)} of training")
    elif is_alone(log):
        told += _clocked(log)
    told += [f"{batch} rows an update"] if (batch := header.get("batch")) else []
    if rates.points:
        course = f" of {rates.first:.3g}"
        if rates.highest > max(rates.first, rates.last):
            peak = f"{rates.highest:.3g} ({segment.unit} {rates.highest_at:,})"
            course = (
                f" that begins at {rates.first:.3g}, comes to {peak} and ends at {rates.last:.3g}"
            )
        elif rates.last != rates.first:
            course += f" to {rates.last:.3g}"
        is_rising = is_warm_up(segment.finite("learning_rate"))
        rising = ", which still rises at the end: all of it is warm-up" if is_rising else ""
        told.append(f"a learning rate{course}{rising}")
    if log.notes.trainable is not None and (few := log.notes.trainable.trainable_millions):
        told.append(f"{few:.4g} M trained parameters")
    if before := header.get("resumed_from"):
        told.append(f"it goes on from {quoted(before)}")
    starts, ends = log.notes.run_marks, log.notes.ended
    if not segment.reports and starts:
        told.append(f"{len(starts)} start{'s' if starts[1:] else ''} ({_few(starts)})")
    if ends and ends[-1] > segment.last_line:
        told.append(f"its end ({_few(ends[-1:])})")
    elif log.notes.mean_losses:
        told.append("its end, with a summary")
    return told


def _clocked(log: TrainingLog) -> list[str]:
    """How far the longest progress bar came in which time, in at most one clause."""
    clocks = {total: marks for total, marks in log.notes.clocks.items() if len(marks) > 1}
    total, marks = max(clocks.items(), key=lambda clock: clock[1][-1][1], default=(0, [(0, 0.0)]))
    steps, seconds = np.array(marks).T
    if seconds[-1] < LONG or steps[-1] <= steps[0]:
        return []
    told = f"{duration(seconds[-1])} for {steps[-1]:,.0f} of {total:,} on its longest progress bar"
    middle = int(np.searchsorted(steps, (steps[0] + steps[-1]) / 2.0))
    paces = [
        (seconds[end] - seconds[start]) / max(steps[end] - steps[start], 1.0)
        for start, end in ((0, middle), (middle, -1))
    ]
    if CHANGED * min(paces) <= max(paces) <= SKIPPED * min(paces):
        told += f", {paces[0]:.3g} s each in the first half and {paces[1]:.3g} in the second"
    return [told]


def _few(lines: list[int]) -> str:
    """The numbers of the first lines of some, and of the last."""
    shown = lines if len(lines) <= MOST else [*lines[: MOST - 1], lines[-1]]
    return f"line{'s' if lines[1:] else ''} {', '.join(f'{line:,}' for line in shown)}"


def remarked(log: TrainingLog) -> Iterator[Seen]:
    """What lines that are no reports say: what was skipped, scores, and texts that repeat."""
    notes = log.notes
    skipped = sum(len(remark.lines) for remark in notes.skips.values())
    if skipped:
        most = max(notes.skips.values(), key=lambda remark: len(remark.lines))
        yield Seen(
            "{skipped:* line says/lines say} that something is skipped (line {line}: {text}).",
            {"skipped": skipped, "line": most.lines[-1], "text": quoted(most.text)},
        )
    if notes.repetitive:
        lines = sorted(line for remark in notes.repetitive.values() for line in remark.lines)
        first = next(each for each in notes.repetitive.values() if lines[0] in each.lines)
        yield Seen(
            "The log shows text that says the same over and over in {count:* line} (line {line}: "
            "{text}).",
            {"count": len(lines), "line": lines[0], "text": quoted(f"…{first.text[-SHOWN:]}")},
        )
    last = sorted(notes.scores.values(), key=lambda remark: remark.lines[-1])[-SCORES:]
    if last:
        yield Seen("Of scores the log says: {told}.", {"told": "; ".join(map(_told, last))})


def _told(remark: Remark) -> str:
    """A remark as it stands there, and as it stood there first."""
    lines, last = remark.lines, quoted(remark.text[:SHOWN])
    if len(lines) == 1:
        return f"{last} (line {lines[0]:,})"
    first, (_, most, place) = quoted(remark.first[:SHOWN]), remark.most
    best = f", the highest {quoted(most[:SHOWN])} (line {place:,})"
    return (
        f"{first} (line {lines[0]:,}) to {last} (line {lines[-1]:,}), {len(lines)} times"
        f"{'' if most in {'', remark.first, remark.text} else best}"
    )


def warned(log: TrainingLog) -> Iterator[Seen]:
    """What was logged as a warning or worse, the worst and the most frequent first."""
    warnings = sorted(
        log.notes.warnings.values(),
        key=lambda warning: (LEVELS.index(warning.level), -len(warning.lines)),
    )
    clauses = [
        f"{quoted(f'{warning.level}: {warning.first}')} (line {warning.lines[0]:,}"
        f"{f', {len(warning.lines):,} times' if len(warning.lines) > 1 else ''})"
        for warning in warnings[:MOST]
    ]
    if clauses:
        yield Seen("The log warns: {told}.", {"told": "; ".join(clauses)})
