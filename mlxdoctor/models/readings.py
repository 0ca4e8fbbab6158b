"""What of a row a loss covers, and the mean loss of some rows under such a reading.

A reading is three independent choices: where the targets begin, where they end, and how far ahead
of their inputs they lie. `mlxdoctor.models.validation` writes the rows themselves in another way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.models.forward import Floats
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


def usual_readings(config: TrainingConfig | None) -> list[Reading]:
    """The readings of sound trainers: mlx-lm's, and those that leave padding out."""
    is_stated = config is not None and not config.is_default("mask_prompt")
    masks = [bool(config.mask_prompt)] if config is not None and is_stated else [False, True]
    return [Reading(masked, until) for masked, until in product(masks, USUAL_ENDS)]


def mean_loss(rows: Sequence[RowLosses], which: Which, reading: Reading) -> MeanLoss:
    """The loss of one model on some rows under a reading: over targets, not over rows."""
    if which == "tuned" and any(row.tuned is None for row in rows):
        return MeanLoss(math.nan, math.nan, 0, 0)
    targets = [_targets(row, row.of(which), reading) for row in rows]
    sums = [float(np.sum(values, dtype=np.float64)) for values in targets if len(values)]
    counts = [len(values) for values in targets if len(values)]
    tokens = sum(counts)
    if not tokens:
        return MeanLoss(math.nan, math.nan, 0, 0)
    values, sizes = np.array(sums, dtype=np.float64), np.array(counts, dtype=np.float64)
    mean = float(values.sum() / tokens)
    residuals = (values - mean * sizes) / sizes.mean()
    spread = math.sqrt(float((residuals**2).sum()) / max(len(sums) - 1, 1))
    return MeanLoss(mean, spread, len(sums), tokens)


def _targets(row: RowLosses, losses: RowPass, reading: Reading) -> Floats:
    """The losses of the row's targets under a reading."""
    first = max(row.prompt_length if reading.masks_prompt else 0, reading.shift)
    last = len(row.tokens)
    ends = np.flatnonzero(row.roles == Role.END)
    # The end token is only left out where there is one.
    if reading.until in ("end", "answer") and len(ends):
        last = int(ends[-1]) + (reading.until == "end")
    # Loss i at a shift has the target i + shift.
    chosen = losses.shifted[reading.shift][first - reading.shift : last - reading.shift]
    left_out = row.tokens[ends] if reading.until in ("others", "others+padding") else ends[:0]
    chosen = chosen[~np.isin(row.tokens[first:last], left_out)]
    has_padding = row.is_padded and reading.until in ("padding", "others+padding")
    if not has_padding or reading.shift != 1:
        return chosen
    pads = [
        after[:1] for pad, after in losses.padding.items() if len(after) and pad not in left_out
    ]
    return np.concatenate([chosen, *pads[:1]])
