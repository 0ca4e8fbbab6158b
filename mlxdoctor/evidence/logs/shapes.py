"""Rows of a log, collected by shape: those that carry the same metrics in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.series import Axis

TRAIN, VALIDATION, OTHER = 0, 1, 2

#: Rows of a shape that are worth moving into arrays.
PACKED_ROWS = 16_384

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

    @property
    def shapes(self) -> list[Shape]:
        """Those that have a row, the fallbacks only where nothing else reports a loss."""
        shapes = [shape for shape in self._shapes.values() if len(shape)]
        if any(shape.role == TRAIN and not shape.fallback for shape in shapes):
            return [shape for shape in shapes if not shape.fallback]
        return shapes

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


def _table(rows: list[Sequence[float]]) -> NDArray[np.float64]:
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        # JSON has integers of any size.
        return np.array([[float(str(value)) for value in row] for row in rows], dtype=np.float64)
