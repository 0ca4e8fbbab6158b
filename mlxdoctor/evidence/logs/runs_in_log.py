"""Where the runs in a log begin, and what it holds twice or out of order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.ordered_rows import OrderedRows
from mlxdoctor.evidence.logs.shapes import OTHER, TRAIN, VALIDATION, Nature

#: Training rows that may stand out of order, of all: more are two runs in one file.
OUT_OF_ORDER = 0.02
#: Two prints of one figure differ by their rounding.
ROUNDING = 6e-4
#: What differs between two trainings that are otherwise the same.
_TIMED = re.compile(r"second|_time|time$|runtime|timestamp|dt$|_ms$")


@dataclass(frozen=True)
class Part:
    """One run among the rows of a log.

    Attributes:
        rows: their places.
        repeats: how many more there are that say the same once more, and are left out.
        misplaced: how many of them stand out of order.
    """

    rows: NDArray[np.int64]
    repeats: int = 0
    misplaced: int = 0


def parts(
    rows: OrderedRows, clock: NDArray[np.float64], marks: list[int], *, distinct: bool
) -> Iterator[Part]:
    """The runs: their rows in the order of the log, without what is there twice.

    Args:
        rows: of the log.
        clock: what goes on from row to row while one run lasts, float64 (n,).
        marks: lines at which a trainer announced that it starts, in order.
        distinct: whether the clock is another at every report.
    """
    whole = np.arange(len(clock))
    marks = [line for line in marks if line > rows.lines[0]]
    if not marks and _only_rises(clock, rows.roles):
        yield Part(whole)
        return
    if not marks and (misplaced := _in_any_order(rows, clock)):
        yield Part(whole, misplaced=misplaced)
        return
    yield from _Division(rows, clock, marks, distinct=distinct).parts()


def _in_any_order(rows: OrderedRows, clock: NDArray[np.float64]) -> int:
    """How many rows of a table that is one run stand out of order; 0 where it is not one."""
    if any(shape.nature is not Nature.TABLE for shape in rows.shapes):
        return 0
    misplaced = 0
    for role in (TRAIN, VALIDATION):
        times = clock[rows.roles == role]
        if not np.isfinite(times).all() or len(np.unique(times)) < len(times):
            return 0
        back = np.flatnonzero(times[1:] < times[:-1])
        # A run that was begun again goes back once, to a time that the first has passed.
        if len(back) == 1 and times[back[0] + 1 :].max() > times[: back[0] + 1].min():
            return 0
        misplaced += len(back)
    times = clock[(rows.roles == TRAIN) | (rows.roles == VALIDATION)]
    return misplaced or int(np.count_nonzero(times[1:] < times[:-1]))


def _only_rises(clock: NDArray[np.float64], roles: NDArray[np.int64]) -> bool:
    """Whether the clock plainly never goes back, so that there is one run; False where unsure."""
    training, validation = roles == TRAIN, roles == VALIDATION
    trained_until = np.maximum.accumulate(np.where(training, clock, -np.inf))
    trained, validated = clock[training], clock[validation]
    # Compared, not subtracted: an epoch may be infinite.
    return bool(
        training.any()
        and np.all(trained[1:] >= trained[:-1])
        and np.all(validated[1:] > validated[:-1])
        and np.all(clock[validation] >= trained_until[validation] - 1)
    )


class _Division:
    """Finds where the runs in a log begin.

    A run begins where its clock goes back, or where the trainer says that it starts; not where
    what was reported is printed once more, nor where a single row comes late.
    """

    def __init__(
        self, rows: OrderedRows, clock: NDArray[np.float64], marks: list[int], *, distinct: bool
    ) -> None:
        self._rows, self._marks, self._distinct = rows, marks, distinct
        self._clock: list[float] = clock.tolist()
        self._roles: list[int] = rows.roles.tolist()
        self._lines: list[int] = rows.lines.tolist()
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

    def parts(self) -> Iterator[Part]:
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

    def _part(self, end: int) -> Part:
        kept = np.ones(end - self._start, bool)
        for first, last in self._dropped:
            kept[first - self._start : last - self._start] = False
        rows = np.flatnonzero(kept) + self._start
        return Part(rows, int(np.count_nonzero(~kept)), self._misplaced)

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
        for name, value in self._rows.values(other).items():
            earlier = self._rows.values(one).get(name)
            if earlier is None:
                continue
            common += name.endswith("loss")
            if math.isnan(value) and math.isnan(earlier):
                continue
            if value != earlier and not abs(value - earlier) <= ROUNDING * max(1.0, abs(value)):
                return False
        return common > 0

    def _is_timed(self, place: int) -> bool:
        return any(_TIMED.search(name) for name in self._rows.values(place))
