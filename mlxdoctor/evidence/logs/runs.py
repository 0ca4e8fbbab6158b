"""The runs in a log: its rows in order, where each run begins, and the series of each."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.log_format import OTHER, TRAIN, VALIDATION, LogSoFar, Nature, Shape
from mlxdoctor.evidence.logs.series import Axis, Segment, Series

#: Rows on validation that make a log where nothing counts them.
MIN_ALONE = 3
#: Training rows that may stand out of order, of all: more are two runs in one file.
OUT_OF_ORDER = 0.02
#: Two prints of one figure differ by their rounding.
ROUNDING = 6e-4
#: What differs between two trainings that are otherwise the same.
_TIMED = re.compile(r"second|_time|time$|runtime|timestamp|dt$|_ms$")

#: One run: the places of its rows, how many more there are that say the same once more and are
#: left out, and how many stand out of order.
_Run = tuple[NDArray[np.int64], int, int]


def segments(log: LogSoFar) -> Iterator[Segment]:
    """The runs, in the order they begin."""
    shapes = _joined(log.shapes)
    marks = sorted(log.notes.run_marks)
    announced = sorted(log.notes.announced, key=itemgetter(0))
    for name in dict.fromkeys(shape.run for shape in shapes):
        rows = _Rows([shape for shape in shapes if shape.run == name])
        for run in rows.runs(marks):
            segment = rows.segment(*run, announced)
            if segment.reports:
                yield replace(segment, name=name)


def _joined(shapes: list[Shape]) -> list[Shape]:
    """The shapes, those of a coarser kind told apart from the others; none without a report.

    Where the log reports steps, what it says of an epoch as a whole has names of its own and
    belongs to the last step.
    """
    reports = [shape for shape in shapes if shape.nature is not Nature.MARK]
    fine = [one for one in reports if one.nature not in (Nature.EPOCH, Nature.BESIDE)]
    if all(shape.nature is Nature.BESIDE for shape in reports):
        return shapes if sum(map(len, reports)) >= MIN_ALONE else []
    taken = {name for shape in fine for name in shape.columns} - {None, "epoch"}
    has_steps = any(shape.role == TRAIN for shape in fine)
    # What is counted over an epoch is none of what is counted at a step.
    of_steps = taken | {"skipped", "skipped_batches_of"} if has_steps else set()
    joined = []
    for shape in shapes:
        columns = shape.columns
        if shape.nature is Nature.EPOCH and (has_steps or not _counts_whole(shape)):
            columns = tuple(f"epoch_{name}" if name in of_steps else name for name in columns)
        elif shape.nature is Nature.BESIDE and not taken.isdisjoint(columns):
            # The same figure once more, in other words.
            columns = tuple(f"last_{name}" if name in taken else name for name in columns)
        else:
            joined.append(shape)
            continue
        joined.append(replace(shape, columns=columns, step=None, axis="row", nature=Nature.PLAIN))
    return joined


def _counts_whole(shape: Shape) -> bool:
    """Whether what counts the updates is a whole number in every row."""
    counts = shape.table[:, shape.step] if shape.step is not None else np.array([np.nan])
    return bool(np.all(counts == np.rint(counts)))


class _Rows:
    """Rows of several shapes in the order of the log.

    Attributes:
        shapes: of the rows.
        tables: the values of each shape's rows, float64 (rows, columns).
        lines: of every row, int64 (n,).
        owner: the number of its shape, int64 (n,).
        index: its place among the rows of that shape, int64 (n,).
        roles: TRAIN, VALIDATION or OTHER, int64 (n,).
        epochs: the epoch that every row names, float64 (n,); NaN where it names none.
        named: what counts the updates in it, float64 (n,); NaN where nothing does.
        steps: the same, counted on where each epoch counts them anew.
    """

    def __init__(self, shapes: list[Shape]) -> None:
        self.shapes = shapes
        self.tables = [shape.table for shape in shapes]
        lines = np.concatenate([np.array(shape.lines, np.int64) for shape in shapes])
        order = np.argsort(lines, kind="stable")
        self.lines = lines[order]
        self.owner = np.repeat(np.arange(len(shapes)), [len(shape) for shape in shapes])[order]
        self.index = np.concatenate([np.arange(len(shape)) for shape in shapes])[order]
        self.roles = np.array([shape.role for shape in shapes])[self.owner]
        self.epochs = self._column("epoch")
        self.named = np.full(len(lines), np.nan)
        for number, shape in enumerate(shapes):
            if shape.step is not None:
                self._fill(self.named, number, shape.step)
        self.steps = self._counted_on()

    def _fill(self, column: NDArray[np.float64], number: int, place: int) -> None:
        mine = self.owner == number
        column[mine] = self.tables[number][self.index[mine], place]

    def _column(self, name: str) -> NDArray[np.float64]:
        """The metric of that name in every row, NaN where a row has none."""
        column = np.full(len(self.lines), np.nan)
        for number, shape in enumerate(self.shapes):
            if name in shape.columns:
                self._fill(column, number, shape.columns.index(name))
        return column

    def values(self, place: int) -> dict[str, float]:
        """What the row at a place reports."""
        shape = self.shapes[self.owner[place]]
        row = self.tables[self.owner[place]][self.index[place]].tolist()
        return {
            name: value
            for column, (name, value) in enumerate(zip(shape.columns, row, strict=True))
            if name is not None and column != shape.step
        }

    @cached_property
    def axis(self) -> Axis:
        """What the steps of the rows count."""
        counted = [shape for shape in self.shapes if shape.step is not None]
        if counted:
            return min(counted, key=lambda shape: shape.role).axis
        epochs = _filled(self.epochs)[self.roles == TRAIN]
        whole = len(epochs) > 0 and bool(np.all(epochs == np.rint(epochs)))
        return "epoch" if whole and bool(np.all(epochs[1:] > epochs[:-1])) else "row"

    def _counted_on(self) -> NDArray[np.float64]:
        training = np.flatnonzero((self.roles == TRAIN) & np.isfinite(self.named))
        epoch = _filled(self.epochs, -np.inf)[training]
        steps = self.named[training]
        anew = np.flatnonzero((steps[1:] <= steps[:-1]) & (epoch[1:] > epoch[:-1])) + 1
        if not len(anew):
            return self.named
        offset = np.zeros(len(self.named))
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
        return np.asarray(self.named + offset)

    def runs(self, marks: Sequence[int]) -> Iterator[_Run]:
        """The runs: their rows in the order of the log, without what is there twice.

        Args:
            marks: lines at which a trainer announced that it starts, in order.
        """
        has_steps = bool(np.isfinite(self.named).any())
        # What goes on from row to row while one run lasts.
        clock = self.steps if has_steps else self.epochs
        marks = [line for line in marks if line > self.lines[0]]
        whole = np.arange(len(clock))
        if not marks and self._only_rises(clock):
            yield whole, 0, 0
        elif not marks and (misplaced := self._in_any_order(clock)):
            yield whole, 0, misplaced
        else:
            yield from _Division(self, clock, marks, distinct=has_steps).runs()

    def _only_rises(self, clock: NDArray[np.float64]) -> bool:
        """Whether the clock plainly never goes back, so that there is one run."""
        training, validation = self.roles == TRAIN, self.roles == VALIDATION
        trained_until = np.maximum.accumulate(np.where(training, clock, -np.inf))
        trained, validated = clock[training], clock[validation]
        # Compared, not subtracted: an epoch may be infinite.
        return bool(
            training.any()
            and np.all(trained[1:] >= trained[:-1])
            and np.all(validated[1:] > validated[:-1])
            and np.all(validated >= trained_until[validation] - 1)
        )

    def _in_any_order(self, clock: NDArray[np.float64]) -> int:
        """How many rows of a table that is one run stand out of order; 0 where it is not one."""
        if any(shape.nature is not Nature.TABLE for shape in self.shapes):
            return 0
        misplaced = 0
        for role in (TRAIN, VALIDATION):
            times = clock[self.roles == role]
            if not np.isfinite(times).all() or len(np.unique(times)) < len(times):
                return 0
            back = np.flatnonzero(times[1:] < times[:-1])
            # A run that was begun again goes back once, to a time that the first has passed.
            if len(back) == 1 and times[back[0] + 1 :].max() > times[: back[0] + 1].min():
                return 0
            misplaced += len(back)
        times = clock[self.roles != OTHER]
        return misplaced or int(np.count_nonzero(times[1:] < times[:-1]))

    def segment(
        self,
        chosen: NDArray[np.int64],
        repeats: int,
        misplaced: int,
        announced: Sequence[tuple[int, int]],
    ) -> Segment:
        """The run of the chosen rows."""
        is_mark = np.array([shape.nature is Nature.MARK for shape in self.shapes])
        reports = chosen[~is_mark[self.owner[chosen]]]
        if not len(reports):
            return Segment({}, 0, 0)
        numbers = self._numbered(chosen)
        before = bisect_right(announced, int(self.lines[chosen[-1]]), key=itemgetter(0))
        planned = announced[before - 1][1] if before else None
        if planned is not None and self.steps is not self.named and numbers.max() > planned:
            # Announced are the steps of each epoch.
            planned = None
        return Segment(
            series=self._series(chosen, numbers),
            first_line=int(self.lines[reports[0]]),
            last_line=int(self.lines[reports[-1]]),
            announced_iterations=planned,
            axis=self.axis,
            reports=len(reports),
            repeats=repeats,
            misplaced=misplaced,
        )

    def _numbered(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """What each chosen row is numbered: its step, its epoch, or its place."""
        if self.axis == "row":
            # A validation row belongs to the training row it follows.
            training = self.roles[chosen] == TRAIN
            counts = np.cumsum(training if training.any() else np.ones(len(chosen), bool))
            return counts.astype(np.int64)
        counts = self.steps[chosen]
        if self.axis == "epoch" and not np.isfinite(counts).any():
            counts = self.epochs[chosen]
        # A line without a step of its own speaks of the last one that was named.
        return np.clip(np.rint(_filled(counts, 0.0)), -(2.0**62), 2.0**62).astype(np.int64)

    def _series(self, chosen: NDArray[np.int64], steps: NDArray[np.int64]) -> dict[str, Series]:
        pieces: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
        for number, shape in enumerate(self.shapes):
            places = np.flatnonzero(self.owner[chosen] == number)
            if not len(places) or shape.nature is Nature.MARK:
                continue
            table = self.tables[number][self.index[chosen[places]]]
            for column, name in enumerate(shape.columns):
                if name is not None and column != shape.step:
                    pieces.setdefault(name, []).append((places, table[:, column]))
        series: dict[str, Series] = {}
        for name, parts in pieces.items():
            places = np.concatenate([part[0] for part in parts])
            values = np.concatenate([part[1] for part in parts])
            # By step, and rows of one step in the order of the log.
            order = np.lexsort((places, steps[places]))
            series[name] = Series(steps[places[order]], values[order])
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
        is_train = self.roles[chosen] == TRAIN
        with_val = np.array(["val_loss" in shape.columns for shape in self.shapes])
        own = is_train & ~with_val[self.owner[chosen]]
        double = is_train & ~own & np.isin(steps, steps[own])
        if not double.any() or np.count_nonzero(own) < np.count_nonzero(double):
            return None
        losses = self._column("train_loss")[chosen]
        rest = is_train & ~double
        return Series(steps[double], losses[double]), Series(steps[rest], losses[rest])


def _filled(values: NDArray[np.float64], before: float = np.nan) -> NDArray[np.float64]:
    """The values, each gap with the last one before it; `before` where there is none."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], before)


class _Division:
    """Finds where the runs in a log begin.

    A run begins where its clock goes back, or where the trainer says that it starts; not where
    what was reported is printed once more, nor where a single row comes late.
    """

    def __init__(
        self, rows: _Rows, clock: NDArray[np.float64], marks: list[int], *, distinct: bool
    ) -> None:
        """Prepare to divide rows.

        Args:
            rows: of the log.
            clock: what goes on from row to row while one run lasts, float64 (n,).
            marks: lines at which a trainer announced that it starts, in order.
            distinct: whether the clock is another at every report.
        """
        self._rows, self._marks, self._distinct = rows, marks, distinct
        self._clock: list[float] = clock.tolist()
        self._roles: list[int] = rows.roles.tolist()
        self._lines: list[int] = rows.lines.tolist()
        present = set(self._roles)
        #: The rows that tell: others stand with those before them.
        self._main = [role for role in (TRAIN, VALIDATION) if role in present] or [OTHER]
        self._kept = np.ones(len(self._clock), bool)
        self._allowed = max(1, int(OUT_OF_ORDER * self._roles.count(TRAIN)))
        self._begin(0)

    def _begin(self, place: int) -> None:
        self._start = self._indexed = place
        self._misplaced = 0
        self._last = [-np.inf, -np.inf, -np.inf]
        self._before = -np.inf
        self._seen: dict[tuple[int, float], list[int]] = {}

    def runs(self) -> Iterator[_Run]:
        """The runs, in order."""
        place = next_mark = 0
        marked = False
        while place < len(self._clock):
            now, role, last = self._clock[place], self._roles[place], self._last
            while next_mark < len(self._marks) and self._marks[next_mark] <= self._lines[place]:
                marked = marked or self._marks[next_mark] > self._lines[self._start]
                next_mark += 1
            if role not in self._main:
                place += 1
                continue
            back = now < last[role] or (role == VALIDATION and now < last[TRAIN] - 1)
            # Validated before the first update once more.
            back = back or (self._distinct and role == VALIDATION and now == last[role] <= 1)
            if (back or marked) and place > self._start:
                end = self._end_of_repeat(place, marked=marked)
                if end > place:
                    self._kept[place:end] = False
                    self._indexed = end
                    place, marked = end, False
                    continue
                if back and not marked and self._is_late(place):
                    self._misplaced += 1
                    place += 1
                    continue
                if back or not self._goes_on(place):
                    yield self._run(place)
                    self._begin(place)
            marked = False
            if not math.isnan(now):
                if role == TRAIN:
                    self._before = self._last[TRAIN]
                self._last[role] = now
            place += 1
        yield self._run(place)

    def _run(self, end: int) -> _Run:
        kept = np.flatnonzero(self._kept[self._start : end]) + self._start
        return kept, end - self._start - len(kept), self._misplaced

    def _told(self, role: int, now: float, before: int) -> list[int]:
        """The run's rows before a place that report on the same at the same time."""
        # Made only where something goes back: most logs never ask.
        for place in range(self._indexed, before):
            self._seen.setdefault((self._roles[place], self._clock[place]), []).append(place)
        self._indexed = max(self._indexed, before)
        return self._seen.get((role, now), [])

    def _goes_on(self, place: int) -> bool:
        """Whether a row follows the one before at the same interval, so that nothing began."""
        last, interval = self._last[TRAIN], self._last[TRAIN] - self._before
        is_next = math.isfinite(interval) and self._clock[place] == last + interval
        return self._roles[place] == TRAIN and interval > 0 and is_next

    def _is_late(self, place: int) -> bool:
        """Whether a row that goes back is out of order, and no run begins with it."""
        role, now = self._roles[place], self._clock[place]
        if self._told(role, now, place) or TRAIN not in self._main:
            return False
        # The next row on training tells.
        mark = next((line for line in self._marks if line > self._lines[place]), math.inf)
        for after in range(place + 1, len(self._clock)):
            if self._lines[after] >= mark:
                break
            if self._roles[after] == TRAIN:
                allowed = role == VALIDATION or self._misplaced < self._allowed
                return allowed and self._clock[after] >= self._last[TRAIN]
        return role == VALIDATION and now > 1

    def _end_of_repeat(self, place: int, *, marked: bool) -> int:
        """Where a print of what was reported before ends; `place` where none begins there.

        Each row of it is there already, and behind it the log ends, goes on from where it was,
        or has another print.
        """
        end, before, timed = place, -np.inf, False
        while end < len(self._clock):
            role, now = self._roles[end], self._clock[end]
            if role in self._main:
                if end > place and (now > max(self._last) or now < before - 1):
                    break
                values = self._rows.values(end)
                told = self._told(role, now, place)
                if not any(_agree(self._rows.values(row), values) for row in told):
                    return place
                timed = timed or any(_TIMED.search(name) for name in values)
                before = max(before, now)
            end += 1
        # Without speeds a training that was begun again with the same seed reads the same.
        return place if marked and not timed else end


def _agree(earlier: dict[str, float], values: dict[str, float]) -> bool:
    """Whether two rows say the same in all that both report, a loss among it."""
    common = earlier.keys() & values.keys()
    return any(name.endswith("loss") for name in common) and all(
        (math.isnan(values[name]) and math.isnan(earlier[name]))
        or values[name] == earlier[name]
        or abs(values[name] - earlier[name]) <= ROUNDING * max(1.0, abs(values[name]))
        for name in common
    )
