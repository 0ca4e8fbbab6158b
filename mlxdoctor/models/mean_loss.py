"""The mean loss of some rows, over the targets that a trainer counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.models.forward import Floats
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import RowLosses, RowPass

Figures = NDArray[np.float64]
#: The last target of a row: the padding token after it, as in mlx-lm; the row's own last
#: token; or the end token, though the template writes more after it.
Until = Literal["padding", "row", "end"]


@dataclass(frozen=True)
class Targets:
    """Which tokens of a row are targets.

    Attributes:
        masks_prompt: they begin with the answer, not with the row.
        until: the last of them.
    """

    masks_prompt: bool
    until: Until = "padding"


@dataclass(frozen=True)
class MeanLoss:
    """A mean over the targets of some rows, as `mlx_lm.lora` reports it.

    Attributes:
        value: nats a target; NaN where there is none.
        spread: of a single row about it, nats: the standard error of `n` rows, drawn at
            random from many, is this over the root of `n`.
    """

    value: float
    spread: float
    rows: int

    def uncertainty(self, total: int) -> float:
        """The standard error of this mean beside that of all `total` rows (Cochran 1977)."""
        return self.spread * math.sqrt(max(1 / self.rows - 1 / max(total, self.rows), 0.0))


def usual_targets(config: TrainingConfig | None) -> list[Targets]:
    """The targets of sound trainers: mlx-lm's, and those that leave padding out."""
    is_stated = config is not None and not config.is_default("mask_prompt")
    masks = [bool(config.mask_prompt)] if config is not None and is_stated else [False, True]
    return [Targets(masked, until) for masked, until in product(masks, get_args(Until))]


def mean_loss(rows: Sequence[RowLosses], which: Which, targets: Targets) -> MeanLoss:
    """The loss of one model on some rows: over targets, not over rows."""
    is_measured = which == "base" or all(row.tuned is not None for row in rows)
    losses = [_of(row, row.of(which), targets) for row in rows] if is_measured else []
    losses = [values for values in losses if len(values)]
    if not losses:
        return MeanLoss(math.nan, math.nan, 0)
    sums = np.array([values.sum(dtype=np.float64) for values in losses])
    counts = np.array([float(len(values)) for values in losses])
    return MeanLoss(*ratio(sums, counts), len(losses))


def ratio(sums: Figures, counts: Figures) -> tuple[float, float]:
    """The mean of all that was counted, and the spread of one sum's mean about it.

    The ratio estimator: the mean's standard error is its spread over the root of the number of
    sums (Cochran 1977).
    """
    mean = float(sums.sum() / counts.sum())
    residuals = (sums - mean * counts) / counts.mean()
    return mean, math.sqrt(float((residuals**2).sum()) / max(len(sums) - 1, 1))


def _of(row: RowLosses, losses: RowPass, targets: Targets) -> Floats:
    """The losses of the row's targets."""
    first = max(row.prompt_length if targets.masks_prompt else 0, 1)
    last = len(row.tokens)
    ends = np.flatnonzero(row.roles == Role.END)
    if targets.until == "end" and len(ends):
        last = int(ends[-1]) + 1
    chosen = losses.next[first - 1 : last - 1]
    if not row.is_padded or targets.until != "padding":
        return chosen
    pads = [after[:1] for after in losses.padding.values() if len(after)]
    return np.concatenate([chosen, *pads[:1]])
