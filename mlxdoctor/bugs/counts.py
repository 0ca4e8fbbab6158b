"""What the log's count of trained tokens says of how rows were counted and put into batches.

mlx-lm goes through all batches in a new order each epoch. After whole epochs the count is
therefore known to the token, and within one it lies between the sums of the smallest and of
the largest batches: bounds, not statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mlxdoctor.bugs.sightings import BugLimits
    from mlxdoctor.evidence.supervision import SupervisedRows
    from mlxdoctor.evidence.training_log import TrainingLog

#: mlx-lm's table abbreviates counts from a thousand on (3.3k): to this many tokens.
_TABLE_UNIT = 100


@dataclass(frozen=True)
class Counted:
    """A count in the log that only the tokens in question explain.

    Attributes:
        iteration: the report's.
        logged: the trained tokens up to there.
        bounds_with: the fewest and the most there can be, counting those tokens.
        bounds_without: the same without them.
    """

    iteration: int
    logged: int
    bounds_with: tuple[int, int]
    bounds_without: tuple[int, int]


@dataclass(frozen=True)
class Unsorted:
    """Counts that show batches of rows in the file's order, where sorted ones would differ.

    Attributes:
        evidence: log-likelihood ratio for that order, natural logarithm.
        reports: counts compared.
        waste: share of all positions that were padding, in the file's order.
        waste_sorted: the same, sorted by length.
    """

    evidence: float
    reports: int
    waste: float
    waste_sorted: float


def padding_counted(rows: SupervisedRows, log: TrainingLog) -> Counted | None:
    """mlx-lm's padding token after each row in the log's count; None where it need not be."""
    every = [row.count() for row in rows.rows]
    batches = [
        [sum(counts[at] for at in batch) for batch in rows.batches]
        for counts in (every, _unpadded(rows, every))
    ]
    more, less = (_Bounds.of(sums, sums) for sums in batches)
    return _counted(rows, log, more, less)


def header_counted(rows: SupervisedRows, log: TrainingLog, header: int) -> Counted | None:
    """What opens each answer in the log's count; None where it need not be.

    Args:
        rows: with the prompts masked.
        log: with counts of trained tokens.
        header: tokens that the template writes before an answer.
    """
    every = [row.count(max(row.offset - header, 1)) for row in rows.rows]
    return _counted(rows, log, _in_any_order(rows, every))


def opening_counted(rows: SupervisedRows, log: TrainingLog, header: int) -> Counted | None:
    """What would open another answer after each row in the log's count; None as above.

    Args:
        rows: with nothing masked.
        log: with counts of trained tokens.
        header: tokens that the template writes before an answer. The end token, which those
            versions put after a row that did not end with it, comes on top.
    """
    every = [
        max(0, min(row.length + header + 1, rows.max_seq_length) - 1 + int(row.padded))
        for row in rows.rows
    ]
    return _counted(rows, log, _in_any_order(rows, every))


def _unpadded(rows: SupervisedRows, counts: Sequence[int]) -> list[int]:
    return [max(0, count - int(row.padded)) for row, count in zip(rows.rows, counts, strict=True)]


def _in_any_order(rows: SupervisedRows, counts: Sequence[int]) -> _Bounds:
    """Bounds that hold for other versions: in any order of rows, whatever a batch's width.

    Before mlx-lm 0.22.3 rows were sorted by length; before its width of 32 k + 1 some rows
    filled a batch's width and had no padding token.
    """
    size = rows.batch_size
    blocks = range(0, len(rows.batches) * size, size)
    low, high = sorted(_unpadded(rows, counts)), sorted(counts, reverse=True)
    return _Bounds.of(
        [sum(low[at : at + size]) for at in blocks], [sum(high[at : at + size]) for at in blocks]
    )


def _counted(
    rows: SupervisedRows, log: TrainingLog, more: _Bounds, less: _Bounds | None = None
) -> Counted | None:
    """The last report that fits only `more`; None if one does not fit it, or all fit `less`."""
    reports = _reports(rows, log)
    if reports is None:
        return None
    less = less or _in_any_order(rows, [row.count() for row in rows.rows])
    at, values, slack = reports
    telling: Counted | None = None
    for iteration, value in zip(at.tolist(), values.tolist(), strict=True):
        bounds = [one.after(iteration) for one in (more, less)]
        fits = [low - slack <= value <= high + slack for low, high in bounds]
        if not fits[0]:
            # A count that neither explains is another trainer's, or of other data.
            return None
        if not fits[1]:
            telling = Counted(iteration, int(value), bounds[0], bounds[1])
    return telling


@dataclass(frozen=True)
class _Bounds:
    """How many tokens some batches have, whichever they are: running sums of both ends."""

    fewest: tuple[int, ...]
    most: tuple[int, ...]

    @classmethod
    def of(cls, least: Sequence[int], most: Sequence[int]) -> _Bounds:
        """Of the fewest and the most tokens of each batch."""
        low, high = np.cumsum(sorted(least)), np.cumsum(sorted(most, reverse=True))
        return cls((0, *low.tolist()), (0, *high.tolist()))

    def after(self, iterations: int) -> tuple[int, int]:
        """The fewest and the most tokens after so many batches, whole epochs first."""
        epochs, rest = divmod(iterations, len(self.most) - 1)
        low, high = (epochs * sums[-1] + sums[rest] for sums in (self.fewest, self.most))
        return low, high


def _reports(
    rows: SupervisedRows, log: TrainingLog
) -> tuple[NDArray[np.int64], NDArray[np.float64], float] | None:
    """Iterations, trained tokens up to them, and what rounding leaves open."""
    series = log.main.get("trained_tokens")
    whole = rows.total_rows // rows.batch_size
    if series is None or log.main.axis != "iteration" or log.is_preference:
        return None
    if rows.split != "train" or not whole or len(rows.batches) != whole or rows.refused:
        return None
    slack, known = _TABLE_UNIT / 2 if "table" in log.format else 0.5, series.finite
    return (known.iterations, known.values, slack) if len(known) else None


def unsorted_batches(rows: SupervisedRows, log: TrainingLog, limits: BugLimits) -> Unsorted | None:
    """Whether rows were put into batches unsorted, by how much the counts scatter.

    Rows of one length in each batch make the batches differ, rows of all lengths make them
    alike. The counts of the reports are compared with both, as sums of batches drawn
    without replacement (normal approximation). None where they show the other, or neither.
    """
    reports = _reports(rows, log)
    if reports is None:
        return None
    at, values, slack = reports
    windows = np.diff(at, prepend=0)
    tokens = np.diff(values, prepend=0.0)
    short = (windows > 0) & (windows <= len(rows.batches) // 2)
    if int(short.sum()) < limits.reports:
        return None
    order = sorted(range(len(rows.rows)), key=lambda at: rows.rows[at].full_length)
    size = rows.batch_size
    by_length = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    as_in_file, by_sorting = (
        _likelihood(rows, batches, windows[short], tokens[short], slack)
        for batches in (rows.batches, by_length)
    )
    evidence = as_in_file - by_sorting
    if not evidence >= limits.decided:
        return None
    wastes = (_waste(rows, batches) for batches in (rows.batches, by_length))
    return Unsorted(evidence, int(short.sum()), *wastes)


def _likelihood(
    rows: SupervisedRows,
    batches: Sequence[Sequence[int]],
    windows: NDArray[np.int64],
    tokens: NDArray[np.float64],
    slack: float,
) -> float:
    counts = np.array([sum(rows.rows[at].count() for at in batch) for batch in batches], float)
    left = 1.0 - (windows - 1) / max(len(counts) - 1, 1)
    # Both ends of a window are rounded; one token more keeps the variance above zero.
    variance = windows * counts.var() * left + slack**2 + 1.0
    off = tokens - windows * counts.mean()
    return float(-0.5 * (np.log(variance) + off**2 / variance).sum())


def _waste(rows: SupervisedRows, batches: Sequence[Sequence[int]]) -> float:
    positions = sum(len(batch) * rows.width(batch) for batch in batches)
    used = sum(rows.rows[at].length for batch in batches for at in batch)
    return 1.0 - used / positions
