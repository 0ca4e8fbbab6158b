"""What of a run's logs is judged, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mlxdoctor.evidence.logs.runs_in_log import ROUNDING
from mlxdoctor.evidence.logs.series import Segment
from mlxdoctor.evidence.source import Source

#: Reports that two logs of one run have in common at least, and their share of the shorter.
MIN_COMMON, SHARE_COMMON = 2, 0.9


@dataclass(frozen=True)
class ReadFile:
    """One file of a log.

    Attributes:
        source: the file.
        segments: the runs in it.
        unread: numbers of lines that look like reports and could not be read.
    """

    source: Source
    segments: list[Segment]
    unread: list[int]


def judged(segments: Sequence[Segment]) -> Segment:
    """The run to judge: the last with training losses, else the last."""
    trained = [one for one in segments if one.get("train_loss") is not None]
    return (trained or list(segments) or [Segment({}, 0, 0)])[-1]


def accounted(files: Sequence[ReadFile]) -> tuple[list[ReadFile], tuple[str, ...]]:
    """The files with a note each on what of it is not judged as it stands; and the notes.

    A run that two files tell of, its output and its W&B history say, is told of once.
    """
    merged, same = _merged(files)
    every = [segment for file in merged for segment in file.segments]
    main = judged(every)
    noted: list[ReadFile] = []
    remarks: list[str] = []
    for file in merged:
        said = _remarks(file, main, same.get(file.source.path), is_one=len(merged) == 1)
        remarks.extend(one for one in said if one not in remarks)
        note = "; ".join(filter(None, (file.source.note, *said)))
        noted.append(replace(file, source=replace(file.source, note=note)))
    return noted, tuple(remarks)


def _merged(files: Sequence[ReadFile]) -> tuple[list[ReadFile], dict[Path, Path]]:
    merged: list[ReadFile] = []
    same: dict[Path, Path] = {}
    for file in files:
        kept = []
        for segment in file.segments:
            for earlier in merged:
                at = next((i for i, one in enumerate(earlier.segments) if _agree(one, segment)), -1)
                if at >= 0:
                    earlier.segments[at] = _together(earlier.segments[at], segment)
                    same[file.source.path] = earlier.source.path
                    break
            else:
                kept.append(segment)
        merged.append(replace(file, segments=kept))
    return merged, same


def _agree(one: Segment, other: Segment) -> bool:
    """Whether two segments report the same training losses at the same updates."""
    mine, its = one.get("train_loss"), other.get("train_loss")
    if mine is None or its is None or "row" in (one.axis, other.axis):
        return False
    common, here, there = np.intersect1d(mine.iterations, its.iterations, return_indices=True)
    if len(common) < max(MIN_COMMON, SHARE_COMMON * min(len(mine), len(its))):
        return False
    left, right = mine.values[here], its.values[there]
    return bool(np.allclose(left, right, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


def _together(one: Segment, other: Segment) -> Segment:
    """The longer of two reports on one run, and what only the other says."""
    mine, its = one.series["train_loss"], other.series["train_loss"]
    longer, shorter = (one, other) if len(mine) >= len(its) else (other, one)
    return replace(
        longer,
        series={**shorter.series, **longer.series},
        announced_iterations=longer.announced_iterations or shorter.announced_iterations,
    )


def _remarks(file: ReadFile, main: Segment, twin: Path | None, *, is_one: bool) -> list[str]:
    said = []
    reports = sum(one.reports for one in file.segments)
    mine = next((one for one in file.segments if one is main), None)
    others = reports - (mine.reports if mine is not None else 0)
    if mine is not None and others:
        runs = "another run" if len(file.segments) == 2 else f"{len(file.segments) - 1} other runs"
        said.append(
            f"judged {mine.reports:,} of {reports:,} reports, those of lines {mine.first_line:,} "
            f"to {mine.last_line:,}; the others are of {runs} in the file"
        )
    elif others and not is_one:
        said.append(
            f"its {_count(reports, 'report')} were not judged: the last log with losses was"
        )
    if twin is not None:
        said.append(f"tells of the same run as {twin.name}")
    if repeats := sum(one.repeats for one in file.segments):
        said.append(f"{_count(repeats, 'report')} printed a second time, counted once")
    if misplaced := sum(one.misplaced for one in file.segments):
        said.append(f"{_count(misplaced, 'report')} out of order, put in order")
    if file.unread:
        lines = _count(len(file.unread), "line")
        said.append(f"{lines} that may be reports could not be read, first line {file.unread[0]:,}")
    if beside := _runs_beside(file.source.path):
        said.append(f"of the newest of {beside} runs in its W&B folder")
    return said


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _runs_beside(path: Path) -> int:
    """How many runs a W&B folder holds, of which the file's is the newest; 0 where it is not."""
    run = path.parent.parent
    if path.parent.name != "files" or run.parent.name != "wandb":
        return 0
    try:
        every = [one.name for one in run.parent.iterdir() if not one.is_symlink()]
    except OSError:
        return 0
    names = sorted(name.removeprefix("offline-") for name in every if "run-" in name)
    is_newest = bool(names) and names[-1] == run.name.removeprefix("offline-")
    return len(names) if is_newest and len(names) > 1 else 0
