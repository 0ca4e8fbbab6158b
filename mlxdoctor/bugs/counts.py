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
    from mlxdoctor.evidence.supervision import SupervisedRow, SupervisedRows
    from mlxdoctor.evidence.training_log import TrainingLog

#: mlx-lm's table abbreviates counts from a thousand on (3.3k): to this many tokens.
_TABLE_UNIT = 100


@dataclass(frozen=True)
class Counted:
    """A count in the log that only one of two ways of counting explains.

    Attributes:
        with_it: whether it is the way that counts the tokens in question.
        iteration: the report's.
        logged: the trained tokens up to there.
        bounds_with: the fewest and the most there can be, counting those tokens.
        bounds_without: the same without them.
    """

    with_it: bool
    iteration: int
    logged: int
    bounds_with: tuple[int, int]
    bounds_without: tuple[int, int]


@dataclass(frozen=True)
class Order:
    """Whether batches were made of rows in the file's order or sorted by length.

    Attributes:
        as_in_file: the first of the two.
        evidence: log-likelihood ratio for that, natural logarithm.
        reports: counts compared.
        waste: share of all positions that were padding, in the file's order.
        waste_sorted: the same, sorted by length.
    """

    as_in_file: bool
    evidence: float
    reports: int
    waste: float
    waste_sorted: float


def padding_counted(rows: SupervisedRows, log: TrainingLog) -> Counted | None:
    """Whether mlx-lm's padding token after each row is in the log's count; None if unknown."""
    every = [row.count() for row in rows.rows]
    real = [_unpadded(row, count) for row, count in zip(rows.rows, every, strict=True)]
    return _told_apart(rows, log, _in_batches(rows, every), _in_batches(rows, real))


def header_counted(rows: SupervisedRows, log: TrainingLog, header: int) -> Counted | None:
    """Whether what opens each answer is in the log's count; None if unknown.

    Args:
        rows: with the prompts masked.
        log: with counts of trained tokens.
        header: tokens that the template writes before an answer.
    """
    every = [row.count(max(row.offset - header, 1)) for row in rows.rows]
    return _told_apart(rows, log, _either(rows, every), _either(rows, _counts(rows)))


def opening_counted(rows: SupervisedRows, log: TrainingLog, header: int) -> Counted | None:
    """Whether the log counts what would open another answer after each row; None if unknown.

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
    return _told_apart(rows, log, _either(rows, every), _either(rows, _counts(rows)))


def _counts(rows: SupervisedRows) -> list[int]:
    return [row.count() for row in rows.rows]


def _unpadded(row: SupervisedRow, count: int) -> int:
    return max(0, count - int(row.padded))


def _either(rows: SupervisedRows, counts: Sequence[int]) -> _Bounds:
    """Bounds that hold for other versions: in any order of rows, whatever a batch's width.

    Before mlx-lm 0.22.3 rows were sorted by length; before its width of 32 k + 1 some rows
    filled a batch's width and had no padding token.
    """
    fewer = [_unpadded(row, count) for row, count in zip(rows.rows, counts, strict=True)]
    size, total = rows.batch_size, len(rows.batches) * rows.batch_size
    low, high = sorted(fewer), sorted(counts, reverse=True)
    blocks = range(0, total, size)
    return _Bounds.of(
        [sum(low[at : at + size]) for at in blocks], [sum(high[at : at + size]) for at in blocks]
    )


def _in_batches(rows: SupervisedRows, counts: Sequence[int]) -> _Bounds:
    """Bounds for the batches that mlx-lm makes now."""
    sums = [sum(counts[at] for at in batch) for batch in rows.batches]
    return _Bounds.of(sums, sums)


def _told_apart(
    rows: SupervisedRows, log: TrainingLog, more: _Bounds, less: _Bounds
) -> Counted | None:
    reports = _reports(rows, log)
    if reports is None:
        return None
    at, values, slack = reports
    held = [True, True]
    telling: Counted | None = None
    for iteration, value in zip(at, values, strict=True):
        bounds = [one.after(int(iteration)) for one in (more, less)]
        fits = [bool(low - slack <= value <= high + slack) for low, high in bounds]
        held = [before and now for before, now in zip(held, fits, strict=True)]
        if fits[0] is not fits[1]:
            telling = Counted(fits[0], int(iteration), int(value), bounds[0], bounds[1])
    # A count that neither explains is another trainer's, or of other data.
    return telling if telling is not None and held[0] is not held[1] else None


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
        return (
            epochs * self.fewest[-1] + self.fewest[rest],
            epochs * self.most[-1] + self.most[rest],
        )


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
    known = np.isfinite(series.values)
    if not known.any():
        return None
    slack = _TABLE_UNIT / 2 if "table" in log.format else 0.5
    return series.iterations[known], series.values[known], slack


def order_of_batches(rows: SupervisedRows, log: TrainingLog, limits: BugLimits) -> Order | None:
    """In which order rows were put into batches, by how much the counts scatter; None if unknown.

    Rows of one length in each batch make the batches differ, rows of all lengths make them
    alike. The counts of the reports are compared with both, as sums of batches drawn
    without replacement (normal approximation).
    """
    reports = _reports(rows, log)
    if reports is None:
        return None
    at, values, slack = reports
    windows = np.diff(at, prepend=0)
    tokens = np.diff(values, prepend=0.0)
    total = len(rows.batches)
    short = (windows > 0) & (windows <= total // 2)
    if int(short.sum()) < limits.reports:
        return None
    windows, tokens = windows[short], tokens[short]
    sorted_batches = _sorted_batches(rows)
    likelihoods = [
        _likelihood(rows, batches, windows, tokens, slack)
        for batches in (rows.batches, sorted_batches)
    ]
    evidence = likelihoods[0] - likelihoods[1]
    if not abs(evidence) >= limits.decided:
        return None
    waste, waste_sorted = (_waste(rows, batches) for batches in (rows.batches, sorted_batches))
    return Order(evidence > 0, evidence, int(short.sum()), waste, waste_sorted)


def _sorted_batches(rows: SupervisedRows) -> tuple[tuple[int, ...], ...]:
    order = sorted(range(len(rows.rows)), key=lambda at: rows.rows[at].full_length)
    size = rows.batch_size
    return tuple(
        tuple(order[start : start + size]) for start in range(0, len(order) - size + 1, size)
    )


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
