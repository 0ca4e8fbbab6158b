"""What a model learned, by how the losses of rows differ between base and tuned model."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.supervision import Role
from mlxdoctor.measure.text.statistics import SIGNIFICANCE, sign_test
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import ENOUGH_ROWS, RowLosses, RowPass

#: Nats by which the loss on the answers fell if the model learned them.
LEARNED = 1.0
#: Probability of a token that is the greedy choice.
LIKELY = 0.5


@dataclass(frozen=True)
class LossChange:
    """A loss in nats, one value a row, of both models on the same rows.

    Attributes:
        base: float64 (rows,).
        tuned: float64 (rows,).
    """

    base: NDArray[np.float64]
    tuned: NDArray[np.float64]

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Self:
        """The base model's and the tuned model's loss of each row; those not finite left out."""
        values = np.array(list(pairs), dtype=np.float64).reshape(-1, 2)
        values = values[np.isfinite(values).all(axis=1)]
        return cls(values[:, 0], values[:, 1])

    @property
    def gains(self) -> NDArray[np.float64]:
        """How far the loss fell, row by row; negative where it rose."""
        return self.base - self.tuned

    @property
    def gain(self) -> float:
        """The mean of `gains`; 0.0 without a row."""
        return float(self.gains.mean()) if len(self.gains) else 0.0

    @property
    def error(self) -> float:
        """The standard error of `gain` over the rows; NaN of fewer than two."""
        count = len(self.gains)
        return float(self.gains.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan

    @property
    def p_value(self) -> float:
        """Sign test over the rows."""
        return sign_test(self.gains)

    @property
    def is_enough(self) -> bool:
        """Whether there are rows enough to decide."""
        return len(self.gains) >= ENOUGH_ROWS

    def fell(self, by: float = 0.0) -> bool:
        """Whether the loss fell by more than `by` nats, significantly."""
        return self.gain > by and self.p_value < SIGNIFICANCE

    def rose(self, by: float = 0.0) -> bool:
        """Whether the loss rose by more than `by` nats, significantly."""
        return self.gain < -by and self.p_value < SIGNIFICANCE

    def losses(self, of: str = "") -> dict[str, float]:
        """Both means, for a finding; `of` begins their names."""
        return {f"{of}base_loss": mean_of(self.base), f"{of}tuned_loss": mean_of(self.tuned)}

    @property
    def measured(self) -> dict[str, int | float]:
        """The figures for a finding."""
        return {
            "rows": len(self.gains),
            **self.losses(),
            "base_probability": round(probability(self.base), 4),
            "tuned_probability": round(probability(self.tuned), 4),
            "p_value": self.p_value,
        }


def region(rows: Sequence[RowLosses], role: Role, shift: int = 1) -> LossChange:
    """Mean loss over the targets of one role, on rows that have some at every shift."""
    having = [row for row in rows if np.any(row.roles[2:] == role)]
    base, tuned = ([row.mean(which, role, shift) for row in having] for which in get_args(Which))
    return LossChange(np.array(base), np.array(tuned))


def change(rows: Sequence[RowLosses], value: Callable[[RowPass], float]) -> LossChange:
    """One figure of each row; rows where it is not defined are left out."""
    return LossChange.of((value(row.base), value(row.of("tuned"))) for row in rows)


def is_likely(losses: NDArray[np.float64], threshold: float) -> bool:
    """Whether the probability behind the median loss is above a threshold."""
    return bool(len(losses)) and probability(losses) > threshold


def probability(losses: NDArray[np.float64]) -> float:
    """The probability behind the median loss; NaN of nothing."""
    return math.exp(-float(np.median(losses))) if len(losses) else math.nan


def mean_of(losses: NDArray[np.float64]) -> float:
    """The mean, to three decimals; NaN of nothing."""
    return round(float(np.mean(losses)), 3) if len(losses) else math.nan
