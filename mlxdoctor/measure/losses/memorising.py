"""How far a run learned its rows by heart: the validation loss against the training loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.engines.series import Floats, SeriesFacts, noise
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment

#: Rows below which more of them help more than any setting; LoRA guides start at 50 to 100.
FEW_ROWS = 50
_CALIBRATION = "0 of 98 sound runs of three base models, 0 of 4 healthy users' logs"


@dataclass(frozen=True)
class MemorisingLimits:
    """When rows were learned by heart."""

    overfitted: float = limit(
        1.2,
        unit="last validation loss over its minimum",
        source="told 15 faulty QLoRA runs from 3 healthy ones without error",
        false_alarms=_CALIBRATION,
    )
    overfitting: float = limit(
        1.05, unit="last validation loss over its minimum", source="twice the noise of validation"
    )
    memorised: float = limit(
        5.0,
        unit="validation loss over training loss at the end",
        source="runs on 12 rows end above 10, those on 200 rows below 1.5; an error only if the "
        "validation loss has its minimum in the first half and ends four noises above it",
        false_alarms=_CALIBRATION,
    )
    gap_share: float = limit(
        0.2,
        unit="validation less training loss at the end, over what was learned on training rows",
        source="rows that nothing predicts keep the ratio low: runs on 6 to 24 such rows end at "
        "0.27 to 0.50 with a ratio of 1.5 to 2; those on 100 and 200 rows at 0.10 at most",
        false_alarms=_CALIBRATION,
    )
    gap_nats: float = limit(0.5, unit="nats between the two at the end", source="one noisy batch")
    few_unimproved: float = limit(
        0.9,
        unit="last validation loss over the first, of two or three",
        source="held-out rows gained nothing while the training rows were learned by heart",
        false_alarms="0 of 12 logs: 4 sound fixture runs, one of the ward, 7 public ones",
    )
    few_certain: float = limit(
        10.0,
        unit="validation loss over training loss, with a rise between two or three validations",
        source="a public run on 245 rows: 2.07 to 2.23 beside 0.04 to 0.2",
    )
    validations: int = limit(4, unit="validation losses", source="a minimum needs both sides")
    settled_share: float = limit(
        0.01,
        unit="of the fall of the validation loss that may be missing",
        source="the noise of a validation set of 24 rows",
    )
    settled_by: float = limit(
        0.6,
        unit="share of the run after which the validation loss fell no more",
        source="24 rows and fewer 0.42 at most; 200 rows 0.9 at least",
        false_alarms=_CALIBRATION,
    )
    passes: float = limit(
        10.0,
        unit="passes over the different rows",
        source="sound runs make 1 to 5, those that memorised 30 to 375",
        false_alarms=_CALIBRATION,
    )


@dataclass(frozen=True)
class Memorising:
    """The validation loss of a run against its training loss.

    Attributes:
        minimum: the lowest validation loss, in nats.
        minimum_at: its iteration.
        last: median of the last two validation losses after it.
        final: the last validation loss.
        gap: `last` over the training loss at the end.
        share: `last` less the training loss at the end, over what the training loss lost.
        risen: it ends above its minimum by more than noise.
        climbed: the later part of it lies four noises above a minimum in the first half.
        settled: share of the run after which it fell no more.
        stale: that was the case for a good part of the run.
        is_far: the validation loss is many times the training loss.
        is_wide: the difference is a good part of what was learned, and `stale`.
    """

    minimum: float
    minimum_at: int
    last: float
    final: float
    gap: float
    share: float
    risen: bool
    climbed: bool
    settled: float
    stale: bool
    is_far: bool
    is_wide: bool

    @property
    def ratio(self) -> float:
        """The last validation loss over the lowest."""
        return self.last / self.minimum


def memorising(segment: Segment, curve: SeriesFacts, limits: MemorisingLimits) -> Memorising | None:
    """Compare the two losses; None where too few validation losses tell."""
    validation = segment.finite("val_loss")
    values, iterations = validation.values, validation.iterations
    lowest = int(np.argmin(values)) if len(values) else 0
    if len(values) < 2 or values[lowest] <= 0.0:
        return None
    if len(values) < limits.validations:
        return _of_few(values, iterations, lowest, curve, limits)
    after, minimum = values[lowest + 1 :], float(values[lowest])
    span = float(iterations[-1] - iterations[0])
    near = minimum + limits.settled_share * float(values[0] - minimum)
    settled = float(iterations[int(np.argmax(values <= near))] - iterations[0]) / span
    last = float(np.median(after[-2:])) if len(after) else minimum
    # The band of noise: how far neighbouring validation losses differ anyway.
    band = 3.0 * noise(values) if len(values) >= 6 else 0.0
    risen = (
        len(after) >= 2
        and last / minimum >= limits.overfitting
        and last - minimum >= band
        and curve.end < last
    )
    # The minimum of noisy values lies some two noises low by itself.
    climbed = (
        len(after) >= 5
        and float(after[len(after) // 2 :].min()) - minimum > 4.0 * noise(values[lowest:])
        and iterations[lowest] - iterations[0] <= span / 2
    )
    gap = last / max(curve.end, 1e-9)
    base = segment.base_val_loss
    start = base if base is not None and math.isfinite(base) else curve.first
    share = (last - curve.end) / (start - curve.end) if start > curve.end else 0.0
    stale = settled <= limits.settled_by
    apart = last - curve.end >= limits.gap_nats
    return Memorising(
        minimum=minimum,
        minimum_at=int(iterations[lowest]),
        last=last,
        final=float(values[-1]),
        gap=gap,
        share=share,
        risen=risen,
        climbed=climbed,
        settled=settled,
        stale=stale,
        is_far=apart and gap >= limits.memorised and (len(after) >= 2 or stale),
        is_wide=apart and share >= limits.gap_share and stale,
    )


def _of_few(
    values: Floats,
    iterations: NDArray[np.int64],
    lowest: int,
    curve: SeriesFacts,
    limits: MemorisingLimits,
) -> Memorising | None:
    """Two or three validations: only a loss many times the training loss tells."""
    first, last, minimum = float(values[0]), float(values[-1]), float(values[lowest])
    gap = last / max(curve.end, 1e-9)
    is_far = gap >= limits.memorised and last - curve.end >= limits.gap_nats
    if not is_far or last < limits.few_unimproved * first:
        return None
    risen = last >= limits.overfitting * minimum
    return Memorising(
        minimum=minimum,
        minimum_at=int(iterations[lowest]),
        last=last,
        final=last,
        gap=gap,
        share=(last - curve.end) / (curve.start - curve.end) if curve.start > curve.end else 0.0,
        risen=risen,
        climbed=risen and gap >= limits.few_certain,
        settled=0.0,
        stale=False,
        is_far=True,
        is_wide=False,
    )


def different_rows(rows: SupervisedRows) -> int:
    """How many rows of the split differ, estimated from those that were read."""
    different = len({row.tokens.tobytes() for row in rows.rows}) / max(len(rows.rows), 1)
    return round(different * rows.total_rows)


def passes_over(
    rows: SupervisedRows | None, config: TrainingConfig | None, segment: Segment
) -> float | None:
    """How often training went over each different row; None where that is unknown."""
    batch = config.batch_size if config is not None else None
    if rows is None or not rows.rows or not batch or segment.axis not in ("iteration", "step"):
        return None
    trained = int(segment.series["train_loss"].iterations[-1]) * batch
    return trained / different_rows(rows)
