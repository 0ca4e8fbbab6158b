"""Rows of a log, collected by shape and turned into segments of series."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.series import Axis, Segment, Series

TRAIN, VALIDATION, OTHER = 0, 1, 2

#: Rows of a shape that are worth moving into arrays.
PACKED_ROWS = 16_384

#: Rows on validation that make a log where nothing counts them.
MIN_ALONE = 3
#: Training rows that may stand out of order, of all: more are two runs in one file.
OUT_OF_ORDER = 0.02
#: Two prints of one figure differ by their rounding.
ROUNDING = 6e-4

_AXES: dict[str, Axis] = {"iteration": "iteration", "iter": "iteration", "it": "iteration"}


def axis_of(step_name: str | None) -> Axis:
    """The axis a step column counts: None means that the rows are only ordered."""
    if step_name is None:
        return "row"
    return _AXES.get(step_name, "epoch" if step_name == "epoch" else "step")


class Nature(StrEnum):
    """What kind of row it is, where that decides how it joins the others.

    Attributes:
        PLAIN: a report by itself.
        TABLE: a row of a table, whose rows may stand in any order.
        EPOCH: what is said once an epoch; where something is reported more often, it is told
            apart from that.
        BESIDE: of validation, of the update that was named last; it shows no log by itself.
        MARK: no report: where an epoch begins.
    """

    PLAIN = "plain"
    TABLE = "table"
    EPOCH = "epoch"
    BESIDE = "beside"
    MARK = "mark"


@dataclass
class Shape:
    """Rows that carry the same metrics in the same order.

    Attributes:
        columns: the metric of each value; None for a value that is not one.
        step: index of the value that counts updates, or None.
        axis: what that value counts.
        run: the run's name where several stand side by side.
        fallback: used only where nothing else in the log reports a loss.
        nature: how its rows join those of others.
        lines: line number of each row.
        values: the row itself.
    """

    columns: tuple[str | None, ...]
    step: int | None
    axis: Axis = "iteration"
    run: str = ""
    fallback: bool = False
    nature: Nature = Nature.PLAIN
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
    def counts_whole(self) -> bool:
        """Whether what counts the updates is a whole number in every row."""
        if self.step is None:
            return False
        counts = self.packed()[1][:, self.step]
        return bool(np.all(counts == np.rint(counts)))

    def renamed(self, columns: tuple[str | None, ...]) -> Shape:
        """The same rows under other names, of the step that was named last."""
        lines, table = self.packed()
        shape = Shape(columns, None, "row", self.run)
        shape._packed.append((lines, table))
        return shape

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
        nature: Nature = Nature.PLAIN,
    ) -> Shape:
        """The shape with these columns; rows are appended to its lists."""
        key = (columns, step, axis, run, fallback, nature)
        if key not in self._shapes:
            self._shapes[key] = Shape(columns, step, axis, run, fallback, nature)
        return self._shapes[key]

    def __len__(self) -> int:
        return sum(map(len, self._shapes.values()))

    @property
    def figures(self) -> int:
        """How many values there are in all rows."""
        return sum(len(one) * len(one.columns) for one in self._shapes.values())

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
        shapes = _joined(shapes)
        for run in dict.fromkeys(shape.run for shape in shapes):
            mine = [shape for shape in shapes if shape.run == run]
            yield from _Run(run, mine).segments(marks, announced)


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
        self._is_report = np.array([one.nature is not Nature.MARK for one in shapes])[self.owner]
        self._counted_on = False
        steps = [
            np.full(len(table), np.nan) if shape.step is None else table[:, shape.step]
            for shape, table in zip(shapes, self.tables, strict=True)
        ]
        self.steps = np.concatenate(steps)[self.order]

    def segments(self, marks: list[int], announced: list[tuple[int, int]]) -> Iterator[Segment]:
        axis = self._axis()
        has_steps = bool(np.isfinite(self.steps).any())
        self._count_on()
        clock = self.steps if has_steps else self._epochs()
        plan = self._divide(clock, sorted(marks), distinct=has_steps)
        announced = sorted(announced, key=itemgetter(0))
        said_at = [line for line, _ in announced]
        for part in plan:
            rows = part.rows
            steps = self._numbered(rows, axis)
            said = bisect_right(said_at, self.lines[rows[-1]])
            planned = announced[said - 1][1] if said else None
            if planned is not None and self._counted_on and len(steps) and steps.max() > planned:
                planned = None
            reports = rows[self._is_report[rows]]
            if not len(reports):
                continue
            yield Segment(
                series=self._series(rows, steps),
                first_line=int(self.lines[reports[0]]),
                last_line=int(self.lines[reports[-1]]),
                announced_iterations=planned,
                axis=axis,
                name=self.name,
                reports=len(reports),
                repeats=part.repeats,
                misplaced=part.misplaced,
            )

    def _divide(
        self, clock: NDArray[np.float64], marks: list[int], *, distinct: bool
    ) -> Iterator[_Part]:
        """The runs: their rows in the order of the log, without what is there twice."""
        whole = np.arange(len(clock))
        marks = [line for line in marks if line > self.lines[0]]
        if not marks and _only_rises(clock, self.roles):
            yield _Part(whole)
            return
        if not marks and (misplaced := self._in_any_order(clock)):
            yield _Part(whole, misplaced=misplaced)
            return
        yield from _Division(self, clock, marks, distinct=distinct).parts()

    def _in_any_order(self, clock: NDArray[np.float64]) -> int:
        """How many rows of a table that is one run stand out of order; 0 where it is not one."""
        if any(shape.nature is not Nature.TABLE for shape in self.shapes):
            return 0
        misplaced = 0
        for role in (TRAIN, VALIDATION):
            times = clock[self.roles == role]
            if not np.isfinite(times).all() or len(np.unique(times)) < len(times):
                return 0
            back = np.flatnonzero(np.diff(times) < 0)
            # A run that was begun again goes back once, to a time that the first has passed.
            if len(back) == 1 and times[back[0] + 1 :].max() > times[: back[0] + 1].min():
                return 0
            misplaced += len(back)
        times = clock[(self.roles == TRAIN) | (self.roles == VALIDATION)]
        return misplaced or int(np.count_nonzero(np.diff(times) < 0))

    def _count_on(self) -> None:
        """Count the updates on where each epoch counts them anew."""
        epochs = self._epochs()
        if not np.isfinite(epochs).any():
            return
        training = np.flatnonzero((self.roles == TRAIN) & np.isfinite(self.steps))
        if len(training) < 2:
            return
        epoch = _filled(epochs, -np.inf)[training]
        steps = self.steps[training]
        anew = np.flatnonzero((steps[1:] <= steps[:-1]) & (epoch[1:] > epoch[:-1])) + 1
        if not len(anew):
            return
        offset = np.zeros(len(self.steps))
        done = 0.0
        for place in anew.tolist():
            begun = steps[place]
            interval = steps[place + 1] - begun if place + 1 < len(steps) else 0.0
            if interval <= 0:
                interval = steps[place - 1] - steps[place - 2] if place > 1 else 0.0
            if interval <= 0:
                # An epoch of one report: it is as long as it counts.
                interval = max(begun, 1.0)
            done += steps[place - 1] - begun + interval
            offset[training[place] :] = done
        # A run that begins anew counts from the beginning.
        for place in (np.flatnonzero(epoch[1:] < epoch[:-1]) + 1).tolist():
            offset[training[place] :] -= offset[training[place]]
        self.steps = self.steps + offset
        self._counted_on = True

    def _axis(self) -> Axis:
        counted = [shape for shape in self.shapes if shape.step is not None]
        best = min(counted, key=lambda shape: shape.role, default=None)
        if best is not None:
            return best.axis
        epochs = _filled(self._epochs())[self.roles == TRAIN]
        whole = len(epochs) > 0 and bool(np.all(epochs == np.rint(epochs)))
        return "epoch" if whole and bool(np.all(np.diff(epochs) > 0)) else "row"

    def _epochs(self) -> NDArray[np.float64]:
        return self.column("epoch")

    def column(self, name: str) -> NDArray[np.float64]:
        """The metric of that name in every row, NaN where a row has none."""
        found = np.full(len(self.lines), np.nan)
        for number, shape in enumerate(self.shapes):
            if name in shape.columns:
                mine = self.owner == number
                found[mine] = self.tables[number][self.index[mine], shape.columns.index(name)]
        return found

    def _numbered(self, rows: NDArray[np.int64], axis: Axis) -> NDArray[np.int64]:
        if axis == "row":
            # A validation row belongs to the training row it follows.
            training = self.roles[rows] == TRAIN
            counts = np.cumsum(training if training.any() else np.ones(len(rows), bool))
            return counts.astype(np.int64)
        steps = self.steps[rows]
        if axis == "epoch" and not np.isfinite(steps).any():
            steps = self._epochs()[rows]
        # A line without a step of its own speaks of the last one that was named.
        filled = _filled(steps, 0.0)
        return np.clip(np.rint(filled), -(2.0**62), 2.0**62).astype(np.int64)

    def _series(self, chosen: NDArray[np.int64], steps: NDArray[np.int64]) -> dict[str, Series]:
        owner, index = self.owner[chosen], self.index[chosen]
        places: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
        for number, shape in enumerate(self.shapes):
            where = np.flatnonzero(owner == number)
            if not len(where) or shape.nature is Nature.MARK:
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
            if np.any(np.diff(steps[where[order]]) < 0):
                order = order[np.argsort(steps[where[order]], kind="stable")]
            series[name] = Series(steps[where[order]], values[order])
        if estimated := self._estimated(chosen, steps):
            series["estimated_train_loss"], series["train_loss"] = estimated
        if "train_loss" not in series and "micro_loss" in series:
            series["train_loss"] = series.pop("micro_loss")
        return series

    def _estimated(
        self, chosen: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> tuple[Series, Series] | None:
        """The training loss that validations estimate where it is reported, too, and the rest.

        Trainers print both at the same step: `step 250: train loss 1.9, val loss 2.0` and
        `iter 250: loss 1.8`.
        """
        with_val = np.array(["val_loss" in one.columns for one in self.shapes])
        has_loss = np.array(["train_loss" in one.columns for one in self.shapes])
        owner = self.owner[chosen]
        own = has_loss[owner] & ~with_val[owner]
        double = has_loss[owner] & with_val[owner] & np.isin(steps, steps[own])
        if not double.any() or np.count_nonzero(own) < np.count_nonzero(double):
            return None
        losses = self.column("train_loss")[chosen]
        rest = has_loss[owner] & ~double
        return Series(steps[double], losses[double]), Series(steps[rest], losses[rest])


def _filled(values: NDArray[np.float64], before: float = np.nan) -> NDArray[np.float64]:
    """The values, each gap with the last one before it; `before` where there is none."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], before)


def _table(rows: list[Sequence[float]]) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        # JSON has integers of any size.
        return np.array([[float(str(value)) for value in row] for row in rows], dtype=np.float64)


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


@dataclass(frozen=True)
class _Part:
    """One run among the rows of a log.

    Attributes:
        rows: their places.
        repeats: how many more there are that say the same once more, and are left out.
        misplaced: how many of them stand out of order.
    """

    rows: NDArray[np.int64]
    repeats: int = 0
    misplaced: int = 0


class _Division:
    """Finds where the runs in a log begin.

    A run begins where its clock goes back, or where the trainer says that it starts; not where
    what was reported is printed once more, nor where a single row comes late.
    """

    def __init__(
        self, run: _Run, clock: NDArray[np.float64], marks: list[int], *, distinct: bool
    ) -> None:
        self._run, self._marks, self._distinct = run, marks, distinct
        self._clock: list[float] = clock.tolist()
        self._roles: list[int] = run.roles.tolist()
        self._lines: list[int] = run.lines.tolist()
        here = set(self._roles)
        self._main = [role for role in (TRAIN, VALIDATION) if role in here] or [OTHER]
        trained = self._roles.count(TRAIN)
        self._allowed = max(1, int(OUT_OF_ORDER * trained))
        self._begin(0)

    def _begin(self, place: int) -> None:
        self._start = place
        self._dropped: list[tuple[int, int]] = []
        self._misplaced = 0
        self._last = [-np.inf, -np.inf, -np.inf]
        self._before = -np.inf
        self._seen: dict[tuple[int, float], list[int]] = {}
        self._indexed = place

    def parts(self) -> Iterator[_Part]:
        """The runs, in order."""
        count = len(self._clock)
        marks, next_mark, marked = self._marks, 0, False
        place = 0
        while place < count:
            now, role, line = self._clock[place], self._roles[place], self._lines[place]
            while next_mark < len(marks) and marks[next_mark] <= line:
                marked = marked or marks[next_mark] > self._lines[self._start]
                next_mark += 1
            if role not in self._main:
                place += 1
                continue
            last = self._last
            back = now < last[role] or (role == VALIDATION and now < last[TRAIN] - 1)
            again = self._distinct and role == VALIDATION and now == last[role] <= 1
            if (back or again or marked) and place > self._start:
                end = self._end_of_repeat(place, marked=marked)
                if end > place:
                    self._dropped.append((place, end))
                    self._indexed = end
                    place, marked = end, False
                    continue
                if marked and not (back or again) and self._goes_on(place):
                    pass
                elif back and not marked and self._is_late(place):
                    self._misplaced += 1
                    place += 1
                    continue
                else:
                    yield self._part(place)
                    self._begin(place)
            marked = False
            if not math.isnan(now):
                if role == TRAIN:
                    self._before = self._last[TRAIN]
                self._last[role] = now
            place += 1
        yield self._part(count)

    def _said(self, role: int, now: float, before: int) -> list[int]:
        """The rows of the run that report the same at the same time, of those `before` a place."""
        # Made only where something goes back: most logs never ask.
        for at in range(self._indexed, before):
            self._seen.setdefault((self._roles[at], self._clock[at]), []).append(at)
        self._indexed = max(self._indexed, before)
        return self._seen.get((role, now), [])

    def _part(self, end: int) -> _Part:
        kept = np.ones(end - self._start, bool)
        for first, last in self._dropped:
            kept[first - self._start : last - self._start] = False
        rows = np.flatnonzero(kept) + self._start
        return _Part(rows, int(np.count_nonzero(~kept)), self._misplaced)

    def _goes_on(self, place: int) -> bool:
        """Whether a row follows the one before at the same interval, so that nothing began."""
        interval = self._last[TRAIN] - self._before
        return (
            self._roles[place] == TRAIN
            and math.isfinite(interval)
            and interval > 0
            and self._clock[place] == self._last[TRAIN] + interval
        )

    def _is_late(self, place: int) -> bool:
        """Whether a row that goes back is out of order, and no run begins with it."""
        role, now = self._roles[place], self._clock[place]
        if self._said(role, now, place) or TRAIN not in self._main:
            return False
        # The next row on training tells.
        after = place + 1
        mark = next((one for one in self._marks if one > self._lines[place]), math.inf)
        while after < len(self._clock) and self._lines[after] < mark:
            if self._roles[after] == TRAIN:
                goes_on = self._clock[after] >= self._last[TRAIN]
                allowed = role == VALIDATION or self._misplaced < self._allowed
                return goes_on and allowed
            after += 1
        return role == VALIDATION and now > 1

    def _end_of_repeat(self, place: int, *, marked: bool) -> int:
        """Where a print of what was reported before ends; `place` where none begins there.

        Each row of it is there already, and behind it the log ends, goes on from where it was,
        or has another print.
        """
        at, before, timed = place, -np.inf, False
        while at < len(self._clock):
            role, now = self._roles[at], self._clock[at]
            if role not in self._main:
                at += 1
                continue
            if at > place and (now > max(self._last) or now < before - 1):
                break
            if not any(self._agree(one, at) for one in self._said(role, now, place)):
                return place
            timed = timed or self._is_timed(at)
            before = max(before, now)
            at += 1
        # Without speeds a training that was begun again with the same seed reads the same.
        return place if marked and not timed else at

    def _agree(self, one: int, other: int) -> bool:
        """Whether two rows say the same in all that both report."""
        common = 0
        for name, value in self._values(other).items():
            earlier = self._values(one).get(name)
            if earlier is None:
                continue
            common += name.endswith("loss")
            if math.isnan(value) and math.isnan(earlier):
                continue
            if value != earlier and not abs(value - earlier) <= ROUNDING * max(1.0, abs(value)):
                return False
        return common > 0

    def _is_timed(self, place: int) -> bool:
        return any(_TIMED.search(name) for name in self._values(place))

    def _values(self, place: int) -> dict[str, float]:
        run = self._run
        owner = int(run.owner[place])
        shape = run.shapes[owner]
        row = run.tables[owner][int(run.index[place])]
        return {
            name: float(row[column])
            for column, name in enumerate(shape.columns)
            if name is not None and column != shape.step
        }


#: What differs between two trainings that are otherwise the same.
_TIMED = re.compile(r"second|_time|time$|runtime|timestamp|dt$|_ms$")
