"""What of a row a loss covers, and how well the loss of some rows then fits what a log says.

A reading is three independent choices: where the targets begin, where they end, and how far ahead
of their inputs they lie. `mlxdoctor.models.formats` writes the rows themselves in another way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import RowLosses, RowPass

#: The last target of a row: the padding token after it, as in mlx-lm; the row's own last
#: token; the end token, though the template writes more after it; or the token before that.
#: "others": the row's own last, but end tokens are no targets, as where they mean padding; and
#: the same with the padding token after the row, where that is another one.
Until = Literal["padding", "row", "end", "answer", "others", "others+padding"]

#: Where sound trainers put the last target of a row.
USUAL_ENDS: tuple[Until, ...] = ("padding", "row", "end")
#: Ends of a row's targets that leave out what they must not.
WITHOUT_ENDS: tuple[Until, ...] = ("answer", "others", "others+padding")
#: Where any trainer might end them.
ALL_ENDS: tuple[Until, ...] = (*USUAL_ENDS, *WITHOUT_ENDS)


@dataclass(frozen=True)
class Reading:
    """One way to turn a row into targets.

    Attributes:
        masks_prompt: the targets begin with the answer, not with the row.
        until: the last target.
        shift: how far ahead of its input a target lies; 1 is a language model's.
    """

    masks_prompt: bool
    until: Until = "padding"
    shift: int = 1


@dataclass(frozen=True)
class MeanLoss:
    """A mean over the targets of some rows, as `mlx_lm.lora` reports it.

    Attributes:
        value: nats a target; NaN where there is none.
        spread: of a single row about it, nats: the standard error of `n` rows, drawn at
            random from many, is this over the root of `n`.
        rows: rows with a target.
        tokens: targets.
    """

    value: float
    spread: float
    rows: int
    tokens: int

    def uncertainty(self, total: int, seen: int) -> float:
        """The standard error of this mean less that of another sample of the same rows.

        Zero where both are of all rows (Cochran 1977, finite populations, ratio estimator).

        Args:
            total: rows that there are.
            seen: how many of them the other mean is over.
        """
        own = max(1 / self.rows - 1 / max(total, self.rows), 0.0)
        other = max(1 / max(seen, 1) - 1 / max(total, seen, 1), 0.0)
        return self.spread * math.sqrt(own + other)


@dataclass(frozen=True)
class Sample:
    """Rows that were measured, and the logged losses they are compared with.

    Attributes:
        rows: both models' losses on them.
        total: rows that they were chosen from.
        seen: how many of those the logged losses are over.
        before: the logged loss before the first update, nats; None where it is not known.
        after: the logged loss nearest to the save.
        drift: how far the loss may have moved between that report and the save, nats.
    """

    rows: tuple[RowLosses, ...]
    total: int
    seen: int
    before: float | None
    after: float
    drift: float = 0.0


@dataclass(frozen=True)
class Fit:
    """The losses of a sample under one reading, beside the logged ones.

    Attributes:
        reading: what the loss covers.
        base: the base model's loss.
        tuned: the tuned model's.
        base_off: how far the base model's loss lies above the logged one, nats; NaN where
            either is not known.
        tuned_off: likewise for the tuned model.
        base_tolerance: how far they may lie apart, nats.
        tuned_tolerance: likewise.
    """

    reading: Reading
    base: MeanLoss
    tuned: MeanLoss
    base_off: float
    tuned_off: float
    base_tolerance: float
    tuned_tolerance: float

    @property
    def is_complete(self) -> bool:
        """Whether both losses are known, here and in the log."""
        return math.isfinite(self.base_off) and math.isfinite(self.tuned_off)

    @property
    def base_agrees(self) -> bool:
        """Whether the base model's loss is the logged one, or one of them is not known."""
        return not abs(self.base_off) > self.base_tolerance

    @property
    def agrees(self) -> bool:
        """Whether every loss that is known is the logged one."""
        return self.base_agrees and not abs(self.tuned_off) > self.tuned_tolerance

    @property
    def misfit(self) -> float:
        """The larger of the two differences, nats."""
        known = [abs(one) for one in (self.base_off, self.tuned_off) if math.isfinite(one)]
        return max(known, default=math.inf)


def fit(sample: Sample, reading: Reading, same: float, errors: float) -> Fit:
    """Compare a sample with the log under a reading.

    Args:
        sample: the rows and the logged losses.
        reading: what the loss may cover.
        same: differences up to this are never more than rounding, nats.
        errors: how many standard errors of sampling count as chance.
    """
    base, tuned = (mean_loss(sample.rows, which, reading) for which in get_args(Which))
    tolerances = [
        max(same, errors * mean.uncertainty(sample.total, sample.seen)) if mean.rows else math.inf
        for mean in (base, tuned)
    ]
    base_off = math.nan if sample.before is None else base.value - sample.before
    tuned_off = tuned.value - sample.after
    return Fit(
        reading, base, tuned, base_off, tuned_off, tolerances[0], tolerances[1] + sample.drift
    )


def best_fit(fits: Sequence[Fit]) -> Fit:
    """The first fit that agrees, else the one nearest to the logged losses."""
    return next((one for one in fits if one.agrees), min(fits, key=lambda one: one.misfit))


def anchored_fit(fits: Sequence[Fit]) -> Fit:
    """The first fit that agrees, else the one whose base model's loss does.

    That loss does not depend on what was saved, and tells how the rows were read.
    """
    anchored = [one for one in fits if one.base_agrees and math.isfinite(one.base_off)]
    best = best_fit(fits)
    return best if best.agrees or not anchored else min(anchored, key=lambda one: abs(one.base_off))


def usual_readings(config: TrainingConfig | None) -> list[Reading]:
    """The readings of sound trainers: mlx-lm's, and those that leave padding out."""
    is_stated = config is not None and not config.is_default("mask_prompt")
    masks = [bool(config.mask_prompt)] if config is not None and is_stated else [False, True]
    return [Reading(*one) for one in product(masks, USUAL_ENDS)]


def mean_loss(rows: Sequence[RowLosses], which: Which, reading: Reading) -> MeanLoss:
    """The loss of one model on some rows under a reading: over targets, not over rows."""
    sums, counts = [], []
    for row in rows:
        losses = row.of(which)
        if losses is None:
            return MeanLoss(math.nan, math.nan, 0, 0)
        total, count = _of_row(row, losses, reading)
        if count:
            sums.append(total)
            counts.append(count)
    tokens = sum(counts)
    if not tokens:
        return MeanLoss(math.nan, math.nan, 0, 0)
    values, sizes = np.array(sums, dtype=np.float64), np.array(counts, dtype=np.float64)
    mean = float(values.sum() / tokens)
    residuals = (values - mean * sizes) / sizes.mean()
    spread = math.sqrt(float((residuals**2).sum()) / max(len(sums) - 1, 1))
    return MeanLoss(mean, spread, len(sums), tokens)


def _of_row(row: RowLosses, losses: RowPass, reading: Reading) -> tuple[float, int]:
    """Sum and number of the row's targets."""
    first = max(row.prompt_length if reading.masks_prompt else 0, reading.shift)
    last = len(row.tokens)
    if reading.until in ("end", "answer"):
        ends = np.flatnonzero(row.roles == Role.END)
        # The end token is only left out where there is one.
        last = int(ends[-1]) + (reading.until == "end") if len(ends) else last
    # Loss i at a shift has the target i + shift; before it was given, i itself.
    skipped, at_shift = max(reading.shift, 0), losses.shifted[reading.shift]
    chosen = at_shift[first - skipped : last - skipped]
    ends = np.empty(0, row.tokens.dtype)
    if reading.until in ("others", "others+padding"):
        ends = row.tokens[row.roles == Role.END]
        chosen = chosen[~np.isin(row.tokens[first:last], ends)]
    total, count = float(np.sum(chosen, dtype=np.float64)), len(chosen)
    is_padded = reading.until in ("padding", "others+padding") and row.is_padded
    if is_padded and reading.shift < 0:
        total, count = total + float(at_shift[-1]), count + 1
    elif is_padded and reading.shift == 1:
        after = next(
            (after for pad, after in losses.padding.items() if len(after) and pad not in ends), None
        )
        if after is not None:
            total, count = total + float(after[0]), count + 1
    return total, count
