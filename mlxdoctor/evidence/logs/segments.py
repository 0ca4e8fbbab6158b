"""Rows of a log turned into segments: the series of each run in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.ordered_rows import OrderedRows, filled
from mlxdoctor.evidence.logs.runs_in_log import parts
from mlxdoctor.evidence.logs.series import Axis, Segment, Series
from mlxdoctor.evidence.logs.shapes import TRAIN, Nature, Rows, Shape

#: Rows on validation that make a log where nothing counts them.
MIN_ALONE = 3


def segments(rows: Rows, marks: list[int], announced: list[tuple[int, int]]) -> Iterator[Segment]:
    """The runs, in the order they begin.

    Args:
        rows: of the log.
        marks: lines at which a trainer announced that it starts.
        announced: (line, iterations) announced there.
    """
    shapes = _joined(rows.shapes)
    for run in dict.fromkeys(shape.run for shape in shapes):
        mine = OrderedRows([shape for shape in shapes if shape.run == run])
        yield from _segments_of(run, mine, sorted(marks), sorted(announced, key=itemgetter(0)))


def _joined(shapes: list[Shape]) -> list[Shape]:
    """The shapes, those of a coarser kind told apart from the others; none without a report.

    Where the log reports steps, what it says of an epoch as a whole has names of its own and
    belongs to the last step.
    """
    reports = [one for one in shapes if one.nature is not Nature.MARK]
    alone = [one for one in reports if one.nature is Nature.BESIDE]
    if len(alone) == len(reports) and sum(map(len, alone)) < MIN_ALONE:
        return []
    fine = [one for one in reports if one.nature not in (Nature.EPOCH, Nature.BESIDE)]
    taken = {name for one in fine for name in one.columns} - {None, "epoch"}
    has_steps = any(one.role == TRAIN for one in fine)
    joined = []
    for one in shapes:
        if one.nature is Nature.EPOCH and (has_steps or not one.counts_whole):
            # What is counted over an epoch is none of what is counted at a step.
            own = {*taken, "skipped", "skipped_batches_of"} if has_steps else set[str]()
            columns = tuple(f"epoch_{name}" if name in own else name for name in one.columns)
            joined.append(one.renamed(columns))
        elif one.nature is Nature.BESIDE and not taken.isdisjoint(one.columns):
            # The same figure once more, in other words.
            columns = tuple(f"last_{name}" if name in taken else name for name in one.columns)
            joined.append(one.renamed(columns))
        else:
            joined.append(one)
    return joined


def _segments_of(
    name: str, rows: OrderedRows, marks: list[int], announced: list[tuple[int, int]]
) -> Iterator[Segment]:
    steps = rows.counted_on()
    has_steps = bool(np.isfinite(steps).any())
    said_at = [line for line, _ in announced]
    for part in parts(rows, steps if has_steps else rows.epochs, marks, distinct=has_steps):
        numbers = _numbered(rows, part.rows, steps, rows.axis)
        said = bisect_right(said_at, rows.lines[part.rows[-1]])
        planned = announced[said - 1][1] if said else None
        # Announced may be the steps of each epoch.
        is_longer = planned is not None and len(numbers) and numbers.max() > planned
        reports = part.rows[rows.is_report[part.rows]]
        if not len(reports):
            continue
        yield Segment(
            series=_series(rows, part.rows, numbers),
            first_line=int(rows.lines[reports[0]]),
            last_line=int(rows.lines[reports[-1]]),
            announced_iterations=None if is_longer and steps is not rows.steps else planned,
            axis=rows.axis,
            name=name,
            reports=len(reports),
            repeats=part.repeats,
            misplaced=part.misplaced,
        )


def _numbered(
    rows: OrderedRows, chosen: NDArray[np.int64], steps: NDArray[np.float64], axis: Axis
) -> NDArray[np.int64]:
    """What each chosen row is numbered: its step, its epoch, or its place."""
    if axis == "row":
        # A validation row belongs to the training row it follows.
        training = rows.roles[chosen] == TRAIN
        counts = np.cumsum(training if training.any() else np.ones(len(chosen), bool))
        return counts.astype(np.int64)
    counts = steps[chosen]
    if axis == "epoch" and not np.isfinite(counts).any():
        counts = rows.epochs[chosen]
    # A line without a step of its own speaks of the last one that was named.
    known = filled(counts, 0.0)
    return np.clip(np.rint(known), -(2.0**62), 2.0**62).astype(np.int64)


def _series(
    rows: OrderedRows, chosen: NDArray[np.int64], steps: NDArray[np.int64]
) -> dict[str, Series]:
    owner, index = rows.owner[chosen], rows.index[chosen]
    places: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
    for number, shape in enumerate(rows.shapes):
        where = np.flatnonzero(owner == number)
        if not len(where) or shape.nature is Nature.MARK:
            continue
        table = rows.tables[number][index[where]]
        for column, name in enumerate(shape.columns):
            if name is not None and column != shape.step:
                places.setdefault(name, []).append((where, table[:, column]))
    series: dict[str, Series] = {}
    for name, pieces in places.items():
        where = np.concatenate([piece[0] for piece in pieces])
        values = np.concatenate([piece[1] for piece in pieces])
        order = np.argsort(where, kind="stable")
        if np.any(np.diff(steps[where[order]]) < 0):
            order = order[np.argsort(steps[where[order]], kind="stable")]
        series[name] = Series(steps[where[order]], values[order])
    if estimated := _estimated(rows, chosen, steps):
        series["estimated_train_loss"], series["train_loss"] = estimated
    if "train_loss" not in series and "micro_loss" in series:
        series["train_loss"] = series.pop("micro_loss")
    return series


def _estimated(
    rows: OrderedRows, chosen: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[Series, Series] | None:
    """The training loss that validations estimate where it is reported, too, and the rest.

    Trainers print both at the same step: `step 250: train loss 1.9, val loss 2.0` and
    `iter 250: loss 1.8`.
    """
    with_val = np.array(["val_loss" in one.columns for one in rows.shapes])
    has_loss = np.array(["train_loss" in one.columns for one in rows.shapes])
    owner = rows.owner[chosen]
    own = has_loss[owner] & ~with_val[owner]
    double = has_loss[owner] & with_val[owner] & np.isin(steps, steps[own])
    if not double.any() or np.count_nonzero(own) < np.count_nonzero(double):
        return None
    losses = rows.column("train_loss")[chosen]
    rest = has_loss[owner] & ~double
    return Series(steps[double], losses[double]), Series(steps[rest], losses[rest])
