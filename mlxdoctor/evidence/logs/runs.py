"""The runs in a log: its rows in order, where each run begins, and the series of each."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.series import median
from mlxdoctor.evidence.logs.log_format import OTHER, TRAIN, VALIDATION, LogSoFar, Nature, Shape
from mlxdoctor.evidence.logs.series import Axis, Segment, Series

#: Two prints of one figure differ by their rounding.
ROUNDING = 6e-4
#: Share of the rows that are in a log twice where two processes write it, how many rows lie between
#: two of one step at most, and by what share their losses differ.
_TWICE, _NEAR, _ALIKE = 0.25, 100, 0.01
#: Reports that are each there as often as the others, where that is no chance.
_GROUPS = 3
#: Share of the last step from which on steps are not counted anew: an epoch's first report is near
#: to 0, a save near to the end.
ANEW = 0.5
#: The first step that is named from which on what stands before it is not of the beginning: 10 of
#: 323 public logs report first after so many.
LATE = 500
#: Reports with steps, and behind them without, that are of two trainers.
REPORTS = 4


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
        return []
    taken = {name for shape in fine for name in shape.columns} - {None, "epoch"}
    has_steps = any(shape.role == TRAIN for shape in fine)
    # What is counted over an epoch is none of what is counted at a step.
    of_steps = taken | {"skipped", "skipped_batches_of"} if has_steps else set()
    joined = []
    for shape in shapes:
        columns = shape.columns
        if shape.nature is Nature.EPOCH and (has_steps or shape.step is None):
            columns = tuple(f"epoch_{name}" if name in of_steps else name for name in columns)
        elif shape.nature is Nature.BESIDE and not taken.isdisjoint(columns):
            # The same figure once more, in other words.
            columns = tuple(f"last_{name}" if name in taken else name for name in columns)
        else:
            joined.append(shape)
            continue
        joined.append(replace(shape, columns=columns, step=None, axis="row", nature=Nature.PLAIN))
    return joined


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
        self.named = self._column()
        once = self._once()
        self.doubled = int(np.count_nonzero(~once))
        self.lines, self.owner = self.lines[once], self.owner[once]
        self.index, self.named = self.index[once], self.named[once]
        self.roles = np.array([shape.role for shape in shapes])[self.owner]
        self.epochs = self._column("epoch")
        self.steps = self._counted_on()

    def _column(self, *names: str) -> NDArray[np.float64]:
        """The value of every row under the first of these names that its shape has, else NaN.

        Without a name, what counts the updates.
        """
        column = np.full(len(self.lines), np.nan)
        for number, shape in enumerate(self.shapes):
            places = [shape.columns.index(name) for name in names if name in shape.columns]
            if (place := next(iter(places), None) if names else shape.step) is not None:
                mine = self.owner == number
                column[mine] = self.tables[number][self.index[mine], place]
        return column

    def _once(self) -> NDArray[np.bool_]:
        """Which rows count: each once, where several processes write one log."""
        once = np.ones(len(self.named), bool)
        if len(once) and not np.isfinite(self.named).any():
            # Several machines print each report, which is then followed by its like.
            for number, table in enumerate(self.tables):
                mine = np.flatnonzero(self.owner == number)
                after = mine[1:][np.diff(mine) == 1]
                rows = table[self.index[after]], table[self.index[after] - 1]
                are_same = (rows[0] == rows[1]) | (np.isnan(rows[0]) & np.isnan(rows[1]))
                once[after] = ~are_same.all(axis=1)
            groups = np.diff(np.append(np.flatnonzero(once), len(once)))
            # The last report may be cut off.
            is_whole = groups[-1] <= groups[0] > 1 and bool((groups[:-1] == groups[0]).all())
            return once if is_whole and len(groups) > _GROUPS else np.ones_like(once)
        if np.count_nonzero(np.diff(self.named) <= 0.0) < _TWICE * len(once):
            return once
        losses = self._column("train_loss", "val_loss")
        reported, apart = dict[tuple[float, ...], int](), list[float]()
        roles = [self.shapes[owner].role for owner in self.owner.tolist()]
        validates = ["val_loss" in self.shapes[owner].columns for owner in self.owner.tolist()]
        # An epoch may count its steps anew.
        epochs = _filled(self._column("epoch"), 0.0).round(2).tolist()
        for row, report in enumerate(zip(roles, epochs, self.named.tolist(), strict=True)):
            first = reported.get(report, -_NEAR)
            if row - first >= _NEAR:
                reported[report] = row
            elif validates[first] or not validates[row]:
                once[row] = False
                apart += [abs(losses[row] / losses[first] - 1.0)] if losses[first] else []
        is_doubled = np.count_nonzero(~once) >= _TWICE * len(once)
        known = np.array([each for each in apart if math.isfinite(each)])
        is_same = len(known) > 0 and median(known) < _ALIKE
        return once if is_doubled and is_same else np.ones_like(once)

    def values(self, place: int) -> dict[str, float]:
        """What the row at a place reports."""
        shape = self.shapes[self.owner[place]]
        row = self.tables[self.owner[place]][self.index[place]].tolist()
        return {
            name: value
            for column, (name, value) in enumerate(zip(shape.columns, row, strict=True))
            if name is not None and column != shape.step
        }

    def axis_of(self, chosen: NDArray[np.int64]) -> Axis:
        """What the steps of the chosen rows count."""
        owners = set(self.owner[chosen].tolist())
        shapes = [shape for number, shape in enumerate(self.shapes) if number in owners]
        counted = [shape for shape in shapes if shape.step is not None]
        # A loss from before the training names its place, be it the only one.
        if counted and np.nanmax(self.named[chosen], initial=0.0) > 0.0:
            return min(counted, key=lambda shape: shape.role).axis
        epochs = _filled(self.epochs)[chosen[self.roles[chosen] == TRAIN]]
        whole = len(epochs) > 0 and bool(np.all(epochs == np.rint(epochs)))
        return "epoch" if whole and bool(np.all(epochs[1:] > epochs[:-1])) else "row"

    def _counted_on(self) -> NDArray[np.float64]:
        training = np.flatnonzero((self.roles == TRAIN) & np.isfinite(self.named))
        epoch = _filled(self.epochs, -1.0)[training]
        steps = self.named[training]
        is_later = (epoch[1:] > epoch[:-1]) & (epoch[:-1] >= 0.0)
        # What begins anew begins low, or has one report; a run that goes on from a save does not.
        # What names its epoch behind reports that name none sums theirs up.
        names = np.isfinite(self.epochs[training])
        is_next = (steps[1:] == steps[:-1]) & (epoch[1:] >= epoch[:-1] + 1.0)
        is_next &= names[:-1] | ~names[1:]
        is_anew = (steps[1:] <= ANEW * steps[:-1]) | is_next
        anew = np.flatnonzero(is_anew & is_later) + 1
        if not len(anew):
            return self.named
        offset = np.zeros(len(self.named))
        lengths = {shape.of_epoch for shape in self.shapes if shape.role == TRAIN}
        length = lengths.pop() if len(lengths) == 1 else 0.0
        # `batch 50/225`: each epoch is as long as it says.
        is_told = length >= steps.max()
        done = 0.0
        for place in anew.tolist():
            begun = steps[place]
            after = steps[place + 1] - begun if place + 1 < len(steps) else 0.0
            # An epoch of one report is as long as it counts.
            interval = after if after > 0 else max(begun, 1.0)
            last = steps[place - 1]
            # Where the last report is out of turn, the epoch ends with it.
            seen = last - begun + (interval if (last - begun) % interval == 0 else begun)
            done += length * (epoch[place] - epoch[place - 1]) if is_told else seen
            offset[training[place] :] = done
        return np.asarray(self.named + offset)

    def runs(self, marks: Sequence[int]) -> Iterator[tuple[NDArray[np.int64], int]]:
        """The runs: the places of their rows, and how many are left out.

        Args:
            marks: lines at which a trainer announced that it starts, in order.
        """
        # What goes on from row to row while one run lasts.
        clock = self.steps if np.isfinite(self.named).any() else self.epochs
        kept: list[NDArray[np.int64]] = []
        repeats, begin = self.doubled, 0
        reported: dict[tuple[int, float], list[int]] = {}
        beginnings = {
            *self._beginnings(clock, np.array(marks)),
            *self._validated_anew(clock, marks),
            *self._uncounted(),
        }
        for end in (*sorted(beginnings), len(clock)):
            rows = np.arange(begin, end)
            again = self._repeated(rows, clock, reported) if kept else 0
            news: dict[tuple[int, float], list[int]] = {}
            # Nothing can repeat what a run of all rows reports.
            for place in rows[again:].tolist() if kept or end < len(clock) else ():
                news.setdefault((int(self.roles[place]), float(clock[place])), []).append(place)
            if not again and kept:
                before = np.concatenate(kept)
                # A short table, of which the whole follows.
                if self._repeated(before, clock, news) == len(before):
                    repeats += len(before)
                else:
                    yield before, repeats
                    repeats = 0
                kept, reported = [], {}
            repeats += again
            kept.append(rows[again:])
            for key, places in news.items():
                reported.setdefault(key, []).extend(places)
            begin = end
        yield np.concatenate(kept), repeats

    def _beginnings(self, clock: NDArray[np.float64], marks: NDArray[np.int64]) -> Iterator[int]:
        """The places at which a run begins, the first left out.

        A run begins where the clock of its training goes back, or where the trainer says that it
        starts and what follows does not go on at the same interval.
        """
        telling = np.flatnonzero((self.roles == self.roles.min()) | self._are_reports())
        passed = np.searchsorted(marks, self.lines[telling])
        marked = np.diff(passed) > 0
        times = clock[telling]
        # What is said before the first update is of no time of the run before.
        times[1:][marked & np.isnan(times[1:])] = 0.0
        times = _filled(times, 0.0)
        # Back, too, is what follows a validation that was later; a time unsaid equals none.
        latest = np.maximum.reduceat(_filled(clock, -np.inf), telling)[:-1]
        again = (clock[telling][1:] == clock[telling][:-1]) & (latest > times[1:])
        back = (times[1:] < times[:-1]) | again
        if np.count_nonzero(back) > 1 and len(set(times.tolist())) == len(times):
            # The rows of a table, which stand in another order.
            return
        for number in np.flatnonzero(back | marked).tolist():
            before, last, now = times[[max(number - 1, 0), number, number + 1]].tolist()
            if last > before and now - last == last - before:
                continue
            # The validation before the first update is of the run that begins.
            gap = np.arange(telling[number] + 1, telling[number + 1])
            if marked[number]:
                is_next = self.lines[gap] >= marks[passed[number]]
            else:
                is_next = clock[gap] < last - 1
            yield int(gap[is_next][0] if is_next.any() else telling[number + 1])

    def _uncounted(self) -> list[int]:
        """The place from which on training counts no steps any more: another trainer's."""
        training = np.flatnonzero(self.roles == TRAIN)
        counted = np.flatnonzero(np.isfinite(self.named[training]))
        after = training[counted[-1] + 1 :] if len(counted) else training[:0]
        is_long = len(after) >= REPORTS and len(counted) >= REPORTS
        return [int(after[0])] if is_long else []

    def _are_reports(self) -> NDArray[np.bool_]:
        """Which rows report what those of the training do, but for a loss: of a batch left out."""
        of_training = {
            name for shape in self.shapes if shape.role == TRAIN for name in shape.columns if name
        }
        like = [
            shape.role == OTHER
            and shape.step is not None
            and 2 * len(of_training.intersection(shape.columns)) > len(shape.columns)
            for shape in self.shapes
        ]
        return np.array(like, bool)[self.owner]

    def _validated_anew(self, clock: NDArray[np.float64], marks: Sequence[int]) -> Iterator[int]:
        """The places at which the untouched model is validated once more, and trained again."""
        if self.axis_of(np.arange(len(clock))) not in ("iteration", "step"):
            return
        said = np.searchsorted(np.array(marks), self.lines)
        training = np.flatnonzero(self.roles == TRAIN)
        first = np.flatnonzero((self.roles == VALIDATION) & (clock <= 1.0))
        for before, place in pairwise(first.tolist()):
            is_next = said[place] > said[before] or training[-1:] > place
            if is_next and (clock[before:place] > 1.0).any():
                yield place

    def _repeated(
        self,
        rows: NDArray[np.int64],
        clock: NDArray[np.float64],
        reported: Mapping[tuple[int, float], list[int]],
    ) -> int:
        """How many rows print once more what a run reported; 0 where one of them differs.

        Before `rows` the clock went back; `reported` is role and time -> places of the run's rows.
        """
        has_training = bool((self.roles[rows] == TRAIN).any())
        for count, place in enumerate(rows.tolist()):
            role, values = int(self.roles[place]), self.values(place)
            earlier = reported.get((role, float(clock[place])))
            if earlier is None and count and clock[place] > max(time for _, time in reported):
                rows = rows[:count]
                break
            if not any(_agree(self.values(row), values) for row in earlier or ()):
                return 0
        # The untouched model's validation is the same in every run.
        shows = (self.roles[rows] == TRAIN) | (clock[rows] > 1.0)
        return len(rows) if shows.any() or not has_training else 0

    def segment(
        self,
        chosen: NDArray[np.int64],
        repeats: int,
        announced: Sequence[tuple[int, int]],
    ) -> Segment:
        """The run of the chosen rows."""
        is_mark = np.array([shape.nature is Nature.MARK for shape in self.shapes])
        reports = chosen[~is_mark[self.owner[chosen]]]
        if not len(reports):
            return Segment({}, 0, 0)
        axis = self.axis_of(chosen)
        if axis in ("iteration", "step"):
            # Training before any step is named is of an unknown one.
            is_placed = np.isfinite(_filled(self.steps[chosen])) | (self.roles[chosen] != TRAIN)
            chosen = chosen[is_placed]
            reports = reports[np.isin(reports, chosen)]
        numbers = self._numbered(chosen, axis)
        before = bisect_right(announced, int(self.lines[chosen[-1]]), key=itemgetter(0))
        planned = announced[before - 1][1] if before else None
        if planned is not None and self.steps is not self.named and numbers.max() > planned:
            # Announced are the steps of each epoch.
            planned = None
        return Segment(
            series=self._series(chosen, numbers, axis),
            first_line=int(self.lines[reports[0]]),
            last_line=int(self.lines[reports[-1]]),
            announced_iterations=planned,
            axis=axis,
            reports=len(reports),
            repeats=repeats,
        )

    def _numbered(self, chosen: NDArray[np.int64], axis: Axis) -> NDArray[np.int64]:
        """What each chosen row is numbered: its step, its epoch, or its place."""
        if axis == "row":
            # A validation row belongs to the training row it follows.
            training = self.roles[chosen] == TRAIN
            counts = np.cumsum(training if training.any() else np.ones(len(chosen), bool))
            return counts.astype(np.int64)
        counts = self.steps[chosen]
        if axis == "epoch" and not np.isfinite(counts).any():
            counts = self.epochs[chosen]
        # A line without a step of its own speaks of the last one that was named; before any, of
        # the beginning, or of the first that is named where that lies far from it.
        named = sorted(set(counts[np.isfinite(counts)].tolist()))[:2]
        is_late = bool(named) and named[0] > max(2.0 * (named[-1] - named[0]), LATE)
        before = named[0] if is_late else 0.0
        # What is said once an epoch is said at its end.
        is_end = np.isnan(_filled(counts)) & (self.epochs[chosen] >= 1.0)
        counts = np.where(is_end, named[0] if named else 0.0, counts)
        return np.clip(np.rint(_filled(counts, before)), -(2.0**62), 2.0**62).astype(np.int64)

    def _series(
        self, chosen: NDArray[np.int64], steps: NDArray[np.int64], axis: Axis
    ) -> dict[str, Series]:
        pieces: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
        for number, shape in enumerate(self.shapes):
            places = np.flatnonzero(self.owner[chosen] == number)
            if not len(places) or shape.nature is Nature.MARK:
                continue
            table = self.tables[number][self.index[chosen[places]]]
            for column, name in enumerate(shape.columns):
                is_word = any(map(str.isalpha, name or "")) and name != "nan"
                if name is not None and is_word and column != shape.step:
                    pieces.setdefault(name, []).append((places, table[:, column]))
        series: dict[str, Series] = {}
        for name, parts in pieces.items():
            places = np.concatenate([part[0] for part in parts])
            values = np.concatenate([part[1] for part in parts])
            # By step, and rows of one step in the order of the log.
            order = np.lexsort((places, steps[places]))
            at, values = steps[places[order]], values[order]
            if name == "train_loss" and at[0] == values[0] == 0.0 and np.any(values):
                # Before the first update none was computed.
                at, values = at[1:], values[1:]
            if name == "val_loss" and axis != "row":
                # One validation, which is summed up once more.
                again = np.flatnonzero((np.diff(at) == 0) & (np.diff(values) == 0.0)) + 1
                at, values = np.delete(at, again), np.delete(values, again)
            if name == "val_loss" and len(at) > 2 and at[-1] == at[-2]:
                # The best of them, whose weights were loaded in the end.
                is_again = np.isclose(values[:-1], values[-1], rtol=ROUNDING).any()
                at, values = (at[:-1], values[:-1]) if is_again else (at, values)
            series[name] = Series(at, values)
        told = series.get("val_perplexity") or series.get("val_ppl")
        losses = series.get("train_loss")
        if told is not None and losses is not None and "val_loss" not in series:
            is_same = np.array_equal(told.iterations, losses.iterations)
            if is_same and np.allclose(losses.values, np.log(told.values), atol=2 * ROUNDING):
                # The same figure in another unit.
                series["val_loss"] = series.pop("train_loss")
        if told is not None and "val_loss" not in series and (told.finite.values > 1.0).all():
            # What is told as a perplexity is a loss all the same.
            series["val_loss"] = Series(told.iterations, np.log(told.values))
        return series


def _filled(values: NDArray[np.float64], before: float = np.nan) -> NDArray[np.float64]:
    """The values, each gap with the last one before it; `before` where there is none."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], before)


def _agree(earlier: dict[str, float], values: dict[str, float]) -> bool:
    """Whether two rows say the same in all that both report, a loss among it."""
    common = earlier.keys() & values.keys()
    return any(name.endswith("loss") for name in common) and all(
        math.isclose(earlier[name], values[name], rel_tol=ROUNDING, abs_tol=ROUNDING)
        or (math.isnan(values[name]) and math.isnan(earlier[name]))
        for name in common
    )
