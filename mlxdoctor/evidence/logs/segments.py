"""Rows of a log, collected by shape and turned into segments of series."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.series import Axis, Segment, Series

TRAIN, VALIDATION, OTHER = 0, 1, 2

#: Rows of a shape that are worth moving into arrays.
PACKED_ROWS = 16_384

_AXES: dict[str, Axis] = {"iteration": "iteration", "iter": "iteration", "it": "iteration"}


def axis_of(step_name: str | None) -> Axis:
    """The axis a step column counts: None means that the rows are only ordered."""
    if step_name is None:
        return "row"
    return _AXES.get(step_name, "epoch" if step_name == "epoch" else "step")


@dataclass
class Shape:
    """Rows that carry the same metrics in the same order.

    Attributes:
        columns: the metric of each value; None for a value that is not one.
        step: index of the value that counts updates, or None.
        axis: what that value counts.
        run: the run's name where several stand side by side.
        fallback: used only where nothing else in the log reports a loss.
        lines: line number of each row.
        values: the row itself.
    """

    columns: tuple[str | None, ...]
    step: int | None
    axis: Axis = "iteration"
    run: str = ""
    fallback: bool = False
    lines: list[int] = field(default_factory=list)
    values: list[Sequence[float]] = field(default_factory=list)
    _packed: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lines) + sum(len(lines) for lines, _ in self._packed)

    def pack(self) -> None:
        """Move the rows into arrays, which take a tenth of the memory."""
        if self.lines:
            self._packed.append((np.array(self.lines, np.int64), _table(self.values)))
            self.lines.clear()
            self.values.clear()

    def packed(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The line numbers and the rows so far, int64 (n,) and float64 (n, columns)."""
        self.pack()
        if len(self._packed) > 1:
            lines, tables = zip(*self._packed, strict=True)
            self._packed = [(np.concatenate(lines), np.concatenate(tables))]
        return self._packed[0]

    @property
    def role(self) -> int:
        if "train_loss" in self.columns:
            return TRAIN
        return VALIDATION if "val_loss" in self.columns else OTHER


class Rows:
    """Everything read so far, by shape."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[object, ...], Shape] = {}

    def shape(
        self,
        columns: tuple[str | None, ...],
        step: int | None,
        axis: Axis = "iteration",
        *,
        run: str = "",
        fallback: bool = False,
    ) -> Shape:
        """The shape with these columns; rows are appended to its lists."""
        key = (columns, step, axis, run, fallback)
        if key not in self._shapes:
            self._shapes[key] = Shape(columns, step, axis, run, fallback)
        return self._shapes[key]

    def __len__(self) -> int:
        return sum(map(len, self._shapes.values()))

    @property
    def forms(self) -> int:
        """How many shapes there are."""
        return len(self._shapes)

    def compact(self) -> None:
        """Keep the rows of long shapes in less memory."""
        for shape in self._shapes.values():
            if len(shape.lines) >= PACKED_ROWS:
                shape.pack()

    def drain(self) -> list[tuple[int, Shape, Sequence[float]]]:
        """(line, shape, values) of every row since the last call, which are now forgotten.

        For a log that is still being written: memory stays that of the unread rows.
        """
        found = [
            (line, shape, values)
            for shape in self._shapes.values()
            for line, values in zip(shape.lines, shape.values, strict=True)
        ]
        for shape in self._shapes.values():
            shape.lines.clear()
            shape.values.clear()
        return sorted(found, key=lambda row: row[0])

    def segments(self, marks: list[int], announced: list[tuple[int, int]]) -> Iterator[Segment]:
        """The runs, in the order they begin.

        Args:
            marks: lines at which a trainer announced that it starts.
            announced: (line, iterations) announced there.
        """
        shapes = [shape for shape in self._shapes.values() if len(shape)]
        if any(shape.role == TRAIN and not shape.fallback for shape in shapes):
            shapes = [shape for shape in shapes if not shape.fallback]
        for run in dict.fromkeys(shape.run for shape in shapes):
            mine = [shape for shape in shapes if shape.run == run]
            yield from _Run(run, mine).segments(marks, announced)


class _Run:
    """The rows of one run name in the order of the log, as arrays."""

    def __init__(self, name: str, shapes: list[Shape]) -> None:
        self.name = name
        self.shapes = shapes
        packed = [shape.packed() for shape in shapes]
        self.tables = [table for _, table in packed]
        sizes = [len(table) for table in self.tables]
        lines = np.concatenate([lines for lines, _ in packed])
        self.order = np.argsort(lines, kind="stable")
        self.lines = lines[self.order]
        self.owner = np.repeat(np.arange(len(shapes)), sizes)[self.order]
        self.index = np.concatenate([np.arange(size) for size in sizes])[self.order]
        self.roles = np.array([shape.role for shape in shapes])[self.owner]
        steps = [
            np.full(len(table), np.nan) if shape.step is None else table[:, shape.step]
            for shape, table in zip(shapes, self.tables, strict=True)
        ]
        self.steps = np.concatenate(steps)[self.order]

    def segments(self, marks: list[int], announced: list[tuple[int, int]]) -> Iterator[Segment]:
        axis = self._axis()
        has_steps = bool(np.isfinite(self.steps).any())
        clock = self.steps if has_steps else self._epochs()
        starts = _starts(clock, self.roles, self.lines, sorted(marks), distinct=has_steps)
        announced = sorted(announced, key=itemgetter(0))
        said_at = [line for line, _ in announced]
        for start, end in zip(starts, [*starts[1:], len(self.lines)], strict=True):
            steps = self._numbered(start, end, axis)
            said = bisect_right(said_at, self.lines[end - 1])
            yield Segment(
                series=self._series(start, end, steps),
                first_line=int(self.lines[start]),
                last_line=int(self.lines[end - 1]),
                announced_iterations=announced[said - 1][1] if said else None,
                axis=axis,
                name=self.name,
            )

    def _axis(self) -> Axis:
        counted = [shape for shape in self.shapes if shape.step is not None]
        best = min(counted, key=lambda shape: shape.role, default=None)
        if best is not None:
            return best.axis
        epochs = self._epochs()[self.roles == TRAIN]
        whole = len(epochs) > 0 and bool(np.all(epochs == np.rint(epochs)))
        return "epoch" if whole and bool(np.all(np.diff(epochs) > 0)) else "row"

    def _epochs(self) -> NDArray[np.float64]:
        return self._column("epoch", 0, len(self.lines))

    def _column(self, name: str, start: int, end: int) -> NDArray[np.float64]:
        found = np.full(end - start, np.nan)
        owner, index = self.owner[start:end], self.index[start:end]
        for number, shape in enumerate(self.shapes):
            if name in shape.columns:
                mine = owner == number
                found[mine] = self.tables[number][index[mine], shape.columns.index(name)]
        return found

    def _numbered(self, start: int, end: int, axis: Axis) -> NDArray[np.int64]:
        if axis == "row":
            # A validation row belongs to the training row it follows.
            training = self.roles[start:end] == TRAIN
            counts = np.cumsum(training if training.any() else np.ones(end - start, bool))
            return counts.astype(np.int64)
        steps = self.steps[start:end]
        if axis == "epoch" and not np.isfinite(steps).any():
            steps = self._epochs()[start:end]
        known = np.isfinite(steps)
        # A line without a step of its own speaks of the last one that was named.
        last = np.maximum.accumulate(np.where(known, np.arange(end - start), -1))
        filled = np.where(last >= 0, steps[np.maximum(last, 0)], 0.0)
        return np.clip(np.rint(filled), -(2.0**62), 2.0**62).astype(np.int64)

    def _series(self, start: int, end: int, steps: NDArray[np.int64]) -> dict[str, Series]:
        owner, index = self.owner[start:end], self.index[start:end]
        places: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
        for number, shape in enumerate(self.shapes):
            where = np.flatnonzero(owner == number)
            if not len(where):
                continue
            rows = self.tables[number][index[where]]
            for column, name in enumerate(shape.columns):
                if name is not None and column != shape.step:
                    places.setdefault(name, []).append((where, rows[:, column]))
        series: dict[str, Series] = {}
        for name, parts in places.items():
            where = np.concatenate([part[0] for part in parts])
            values = np.concatenate([part[1] for part in parts])
            order = np.argsort(where, kind="stable")
            series[name] = Series(steps[where[order]], values[order])
        if "train_loss" not in series and "micro_loss" in series:
            series["train_loss"] = series.pop("micro_loss")
        return series


def _table(rows: list[Sequence[float]]) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        # JSON has integers of any size.
        return np.array([[float(str(value)) for value in row] for row in rows], dtype=np.float64)


def _together(
    clock: NDArray[np.float64], roles: NDArray[np.int64], lines: NDArray[np.int64]
) -> Iterator[tuple[float, int, int]]:
    # As Python's numbers, a block at a time: all at once they take four times the memory.
    for start in range(0, len(clock), PACKED_ROWS):
        part = slice(start, start + PACKED_ROWS)
        yield from zip(
            clock[part].tolist(), roles[part].tolist(), lines[part].tolist(), strict=True
        )


def _only_rises(clock: NDArray[np.float64], roles: NDArray[np.int64]) -> bool:
    """Whether the clock plainly never goes back, so that there is one run; False where unsure."""
    training, validation = roles == TRAIN, roles == VALIDATION
    trained_until = np.maximum.accumulate(np.where(training, clock, -np.inf))
    return bool(
        training.any()
        and np.all(np.diff(clock[training]) >= 0)
        and np.all(np.diff(clock[validation]) > 0)
        and np.all(clock[validation] >= trained_until[validation] - 1)
    )


def _starts(
    clock: NDArray[np.float64],
    roles: NDArray[np.int64],
    lines: NDArray[np.int64],
    marks: list[int],
    *,
    distinct: bool,
) -> list[int]:
    """Indices at which a run begins: its clock goes back, or the trainer says it starts."""
    if not marks and _only_rises(clock, roles):
        return [0]
    starts = [0]
    last = [-np.inf, -np.inf, -np.inf]
    main = [role for role in (TRAIN, VALIDATION) if np.any(roles == role)] or [OTHER]
    next_mark = 0
    marked = False
    for position, (now, role, line) in enumerate(_together(clock, roles, lines)):
        while next_mark < len(marks) and marks[next_mark] <= line:
            marked = marked or marks[next_mark] > lines[starts[-1]]
            next_mark += 1
        if role not in main:
            continue
        back = now < last[role] or (role == VALIDATION and now < last[TRAIN] - 1)
        again = distinct and role == VALIDATION and now == last[role] <= 1
        if (back or again or marked) and position > starts[-1]:
            starts.append(position)
            last = [-np.inf, -np.inf, -np.inf]
        marked = False
        if not math.isnan(now):
            last[role] = now
    return starts
