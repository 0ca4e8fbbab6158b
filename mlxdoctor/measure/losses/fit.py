"""How well the losses of rows, read in some way, fit what the log says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.losses.logged_levels import LoggedLoss
from mlxdoctor.models.losses import RowLosses, TokenLosses
from mlxdoctor.models.readings import MeanLoss, Reading, Until, mean_loss
from mlxdoctor.models.validation import ValidationRows

#: Where sound trainers put the last target of a row.
USUAL_ENDS: tuple[Until, ...] = ("padding", "row", "end")

_CHECKPOINT = re.compile(r"(?:^|[_-])0*(\d+)_adapters\.")


@dataclass(frozen=True)
class Sample:
    """Rows that were measured, and the logged losses they are compared with.

    Attributes:
        rows: both models' losses on them.
        total: rows that they were chosen from.
        seen: how many of those the logged losses are over.
        logged: the logged losses.
    """

    rows: tuple[RowLosses, ...]
    total: int
    seen: int
    logged: LoggedLoss


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


def fits(sample: Sample, readings: Iterable[Reading], same: float, errors: float) -> list[Fit]:
    """Compare a sample with the log under several readings.

    Args:
        sample: the rows and the logged losses.
        readings: what the loss may cover.
        same: differences up to this are never more than rounding, nats.
        errors: how many standard errors of sampling count as chance.
    """
    return [_fit(sample, reading, same, errors) for reading in readings]


def _fit(sample: Sample, reading: Reading, same: float, errors: float) -> Fit:
    logged = sample.logged
    base = mean_loss(sample.rows, "base", reading)
    tuned = mean_loss(sample.rows, "tuned", reading)

    def tolerance(mean: MeanLoss) -> float:
        if not mean.rows:
            return math.inf
        return max(same, errors * mean.uncertainty(sample.total, sample.seen))

    return Fit(
        reading,
        base,
        tuned,
        math.nan if logged.before is None else base.value - logged.before,
        tuned.value - logged.after,
        tolerance(base),
        tolerance(tuned) + logged.drift,
    )


def exact_fit(
    validation: ValidationRows | None,
    logged: LoggedLoss,
    readings: Iterable[Reading],
    same: float,
) -> Fit | None:
    """Both losses on the very rows that the log's are over, so that nothing is left to chance.

    Which rows those are follows from the configuration if `mlx_lm.lora` made the run. That it did,
    on this base and these rows, the base model's loss says: it has to be the first one logged.

    Args:
        validation: the validation rows; None where there are none.
        logged: the logged losses.
        readings: what the loss may cover.
        same: differences up to this are rounding, nats.

    Returns:
        The fit whose base model's loss is nearest to the logged one; that of the tuned model is
        NaN where it is not within rounding. None where the rows are not known, or too many.
    """
    if logged.before is None or logged.split != "valid":
        return None
    if validation is None or validation.measure_validated is None:
        return None
    first = validation.measure_validated(1)
    if not first:
        return None
    found = [(reading, mean_loss(first, "base", reading)) for reading in readings]
    before = logged.before
    reading, base = min(found, key=lambda one: abs(one[1].value - before))
    tuned = MeanLoss(math.nan, math.nan, 0, 0)
    if abs(base.value - before) <= same:
        tuned = mean_loss(validation.measure_validated(logged.iteration), "tuned", reading)
    off = base.value - before, tuned.value - logged.after
    return Fit(reading, base, tuned, *off, same, same + logged.drift)


def best_fit(fits: Sequence[Fit]) -> Fit:
    """The first fit that agrees, else the one nearest to the logged losses."""
    return next((one for one in fits if one.agrees), min(fits, key=lambda one: one.misfit))


def anchored_fit(fits: Sequence[Fit]) -> Fit:
    """The first fit that agrees, else the one whose base model's loss does.

    That loss does not depend on what was saved, and tells how the rows were read.
    """
    known = [one for one in fits if one.base_agrees and math.isfinite(one.base_off)]
    best = best_fit(fits)
    return best if best.agrees or not known else min(known, key=lambda one: abs(one.base_off))


def usual_readings(config: TrainingConfig | None) -> list[Reading]:
    """The readings of sound trainers: mlx-lm's, and those that leave padding out."""
    is_stated = config is not None and not config.is_default("mask_prompt")
    masks = [bool(config.mask_prompt)] if config is not None and is_stated else [False, True]
    return [Reading(*one) for one in product(masks, USUAL_ENDS)]


def first_look(
    losses: TokenLosses,
    validation: ValidationRows | None,
    trained: SupervisedRows | None,
    logged: LoggedLoss,
    config: TrainingConfig | None,
) -> Sample:
    """The rows that are measured anyway; all that were validated on, where that costs little.

    Args:
        losses: what was measured.
        validation: the validation rows; None where there are none.
        trained: the training rows, for logs without a validation.
        logged: what the rows are to be compared with.
        config: says how many rows a validation looks at.
    """
    rows = losses.split(logged.split)
    if logged.split == "train" or validation is None:
        total = trained.total_rows if trained is not None else len(rows)
        return Sample(rows, total, total, logged)
    total = validation.total
    batches = config.val_batches if config is not None else None
    size = config.batch_size if config is not None else None
    seen = total if batches is None or batches < 0 else min(batches * (size or 1), total)
    if len(rows) < total <= validation.affordable:
        rows = validation.measure(None, total)
    return Sample(rows, total, seen, logged)


def is_between(sample: Sample) -> bool:
    """Whether some of the prompt in the loss would account for the log's first one."""
    both = [mean_loss(sample.rows, "base", Reading(masked)).value for masked in (True, False)]
    return sample.logged.before is not None and min(both) < sample.logged.before < max(both)


def saved_at(adapter: Adapter | None) -> int | None:
    """The iteration that the name of a checkpoint's file states."""
    found = _CHECKPOINT.search(adapter.path.name) if adapter is not None else None
    return int(found[1]) if found is not None else None


def counted_tokens(log: TrainingLog, config: TrainingConfig | None) -> float | None:
    """Targets a row that the log counted while training; None where it did not."""
    series = log.main.get("trained_tokens")
    rows = config.batch_size if config is not None else None
    if series is None or not len(series) or not rows or log.main.axis not in ("iteration", "step"):
        return None
    tokens, iterations = float(series.values[-1]), int(series.iterations[-1])
    return tokens / (iterations * rows) if tokens > 0 and iterations > 0 else None


def masks_that_count(counted: float, rows: SupervisedRows, tolerance: float) -> Sequence[bool]:
    """Which masks give about as many targets a row: of the prompt (True), of nothing (False).

    Args:
        counted: targets a row, as logged.
        rows: the training rows.
        tolerance: by which the counts may differ, as a share.
    """
    means = {
        masked: sum(row.count(row.prompt_length if masked else 0) for row in rows.rows)
        / max(len(rows.rows), 1)
        for masked in (True, False)
    }
    return [
        masked for masked, mean in means.items() if abs(counted - mean) <= tolerance * max(mean, 1)
    ]
