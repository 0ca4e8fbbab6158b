"""What of a run's logs is judged, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlxdoctor.evidence.logs.runs import ROUNDING
from mlxdoctor.evidence.logs.series import Segment
from mlxdoctor.evidence.source import Source

#: Reports that two logs of one run have in common at least, and their share of the shorter.
MIN_COMMON, SHARE_COMMON = 2, 0.9


@dataclass(frozen=True)
class ReadFile:
    """One file of a log.

    Attributes:
        source: the file.
        segments: the runs in it that no file before it tells of.
        unread: numbers of lines that look like reports and could not be read.
        same_as: the name of a file that tells of one of its runs, too; "" for none.
    """

    source: Source
    segments: list[Segment]
    unread: list[int]
    same_as: str = ""


def judged(segments: Sequence[Segment]) -> Segment:
    """The run to judge: the last with training losses, else the last."""
    trained = [segment for segment in segments if segment.get("train_loss") is not None]
    return (trained or list(segments) or [Segment({}, 0, 0)])[-1]


def accounted(files: Sequence[ReadFile]) -> tuple[list[ReadFile], tuple[str, ...]]:
    """The files with a note each on what of it is not judged as it stands; and the notes.

    A run that two files tell of, its output and its W&B history say, is told of once.
    """
    merged: list[ReadFile] = []
    for file in files:
        merged.append(_merged(file, merged))
    main = judged([segment for file in merged for segment in file.segments])
    remarks = [_remarks(file, main, is_alone=len(merged) == 1) for file in merged]
    noted = [
        replace(file, source=replace(file.source, note="; ".join(filter(None, (note, *said)))))
        for file, said in zip(merged, remarks, strict=True)
        for note in (file.source.note,)
    ]
    return noted, tuple(dict.fromkeys(remark for said in remarks for remark in said))


def _merged(file: ReadFile, earlier: Sequence[ReadFile]) -> ReadFile:
    """The file without the runs that earlier ones tell of, which get what only this one says."""
    own, same_as = [], ""
    for segment in file.segments:
        places = [
            (other, place)
            for other in earlier
            for place, candidate in enumerate(other.segments)
            if _agree(candidate, segment)
        ]
        if not places:
            own.append(segment)
            continue
        other, place = places[0]
        same_as = other.source.path.name
        both = (segment, other.segments[place])
        short, long = sorted(both, key=lambda told: len(told.series["train_loss"]))
        other.segments[place] = replace(
            long,
            series={**short.series, **long.series},
            announced_iterations=long.announced_iterations or short.announced_iterations,
        )
    return replace(file, segments=own, same_as=same_as)


def _agree(first: Segment, second: Segment) -> bool:
    """Whether two segments report the same training losses at the same updates."""
    losses, others = first.get("train_loss"), second.get("train_loss")
    if losses is None or others is None or "row" in (first.axis, second.axis):
        return False
    common, here, there = np.intersect1d(losses.iterations, others.iterations, return_indices=True)
    if len(common) < max(MIN_COMMON, SHARE_COMMON * min(len(losses), len(others))):
        return False
    left, right = losses.values[here], others.values[there]
    return bool(np.allclose(left, right, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


def _remarks(file: ReadFile, main: Segment, *, is_alone: bool) -> list[str]:
    segments = file.segments
    reports = sum(segment.reports for segment in segments)
    is_judged = any(segment is main for segment in segments)
    remarks = []
    if is_judged and reports > main.reports:
        runs = "another run" if len(segments) == 2 else f"{len(segments) - 1} other runs"
        remarks.append(
            f"judged {main.reports:,} of {reports:,} reports, those of lines {main.first_line:,} "
            f"to {main.last_line:,}; the others are of {runs} in the file"
        )
    elif reports and not is_judged and not is_alone:
        remarks.append(
            f"its {_count(reports, 'report')} were not judged: the last log with losses was"
        )
    if file.same_as:
        remarks.append(f"tells of the same run as {file.same_as}")
    if repeats := sum(segment.repeats for segment in segments):
        remarks.append(f"{_count(repeats, 'report')} printed a second time, counted once")
    if misplaced := sum(segment.misplaced for segment in segments):
        remarks.append(f"{_count(misplaced, 'report')} out of order, put in order")
    if file.unread:
        number = _count(len(file.unread), "line")
        remarks.append(
            f"{number} that may be reports could not be read, first line {file.unread[0]:,}"
        )
    if beside := _runs_beside(file.source.path):
        remarks.append(f"of the newest of {beside} runs in its W&B folder")
    return remarks


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _runs_beside(path: Path) -> int:
    """How many runs a W&B folder holds, of which the file's is the newest; 0 where it is not."""
    run = path.parent.parent
    if path.parent.name != "files" or run.parent.name != "wandb":
        return 0
    try:
        names = [entry.name for entry in run.parent.iterdir() if not entry.is_symlink()]
    except OSError:
        return 0
    runs = sorted(name.removeprefix("offline-") for name in names if "run-" in name)
    is_newest = runs[-1:] == [run.name.removeprefix("offline-")]
    return len(runs) if is_newest and len(runs) > 1 else 0
