"""The rows of one run in the order of the log, as arrays."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.series import Axis
from mlxdoctor.evidence.logs.shapes import TRAIN, Nature, Shape


class OrderedRows:
    """Rows of several shapes in the order of the log.

    Attributes:
        shapes: of the rows.
        tables: the values of each shape's rows, float64 (rows, columns).
        lines: of every row, int64 (n,).
        owner: the number of its shape, int64 (n,).
        index: its place among the rows of that shape, int64 (n,).
        roles: TRAIN, VALIDATION or OTHER, int64 (n,).
        is_report: whether it is more than a mark, bool (n,).
        steps: what counts the updates in it, float64 (n,); NaN where nothing does.
    """

    def __init__(self, shapes: list[Shape]) -> None:
        self.shapes = shapes
        packed = [shape.packed() for shape in shapes]
        self.tables = [table for _, table in packed]
        sizes = [len(table) for table in self.tables]
        lines = np.concatenate([lines for lines, _ in packed])
        order = np.argsort(lines, kind="stable")
        self.lines = lines[order]
        self.owner = np.repeat(np.arange(len(shapes)), sizes)[order]
        self.index = np.concatenate([np.arange(size) for size in sizes])[order]
        self.roles = np.array([shape.role for shape in shapes])[self.owner]
        self.is_report = np.array([one.nature is not Nature.MARK for one in shapes])[self.owner]
        steps = [
            np.full(len(table), np.nan) if shape.step is None else table[:, shape.step]
            for shape, table in zip(shapes, self.tables, strict=True)
        ]
        self.steps = np.concatenate(steps)[order]

    def column(self, name: str) -> NDArray[np.float64]:
        """The metric of that name in every row, NaN where a row has none."""
        found = np.full(len(self.lines), np.nan)
        for number, shape in enumerate(self.shapes):
            if name in shape.columns:
                mine = self.owner == number
                found[mine] = self.tables[number][self.index[mine], shape.columns.index(name)]
        return found

    @cached_property
    def epochs(self) -> NDArray[np.float64]:
        """The epoch that every row names."""
        return self.column("epoch")

    @cached_property
    def axis(self) -> Axis:
        """What the steps of the rows count."""
        counted = [shape for shape in self.shapes if shape.step is not None]
        best = min(counted, key=lambda shape: shape.role, default=None)
        if best is not None:
            return best.axis
        epochs = filled(self.epochs)[self.roles == TRAIN]
        whole = len(epochs) > 0 and bool(np.all(epochs == np.rint(epochs)))
        return "epoch" if whole and bool(np.all(epochs[1:] > epochs[:-1])) else "row"

    def counted_on(self) -> NDArray[np.float64]:
        """The steps of all rows, counted on where each epoch counts them anew."""
        epochs = self.epochs
        if not np.isfinite(epochs).any():
            return self.steps
        training = np.flatnonzero((self.roles == TRAIN) & np.isfinite(self.steps))
        if len(training) < 2:
            return self.steps
        epoch = filled(epochs, -np.inf)[training]
        steps = self.steps[training]
        anew = np.flatnonzero((steps[1:] <= steps[:-1]) & (epoch[1:] > epoch[:-1])) + 1
        if not len(anew):
            return self.steps
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
        return np.asarray(self.steps + offset)

    def values(self, place: int) -> dict[str, float]:
        """What the row at a place reports."""
        owner = int(self.owner[place])
        shape = self.shapes[owner]
        row = self.tables[owner][int(self.index[place])]
        return {
            name: float(row[column])
            for column, name in enumerate(shape.columns)
            if name is not None and column != shape.step
        }


def filled(values: NDArray[np.float64], before: float = np.nan) -> NDArray[np.float64]:
    """The values, each gap with the last one before it; `before` where there is none."""
    known = np.isfinite(values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(last >= 0, values[np.maximum(last, 0)], before)
