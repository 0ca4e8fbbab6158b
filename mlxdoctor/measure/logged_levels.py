"""The losses of a log: that of the model that was saved, and the curves that a report shows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlxdoctor.engines.series import median
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.exhibits import Curve, Floor, LossCurve

#: Last training reports whose median stands for the end of training.
LAST_REPORTS = 3
#: Points a curve is drawn with at most; more would be closer than a pixel.
MAX_POINTS = 1_000


@dataclass(frozen=True)
class LoggedLoss:
    """What the log says of the model after training, nats.

    Attributes:
        after: the loss nearest to the save.
        drift: how far the loss may have moved between that report and the save.
        iteration, split: of that report.
    """

    after: float
    drift: float
    iteration: int
    split: Literal["valid", "train"]


def logged_loss(log: TrainingLog, planned: int | None = None) -> LoggedLoss | None:
    """Read the losses of the log's main segment; None where it has no finite one."""
    segment = log.main
    train, validation = segment.get("train_loss"), segment.get("val_loss")
    before = segment.base_val_loss if not log.resumed else None
    last = int(train.iterations[-1]) if train is not None and len(train) else None
    named = log.notes.saves[-1].iteration if log.notes.saves else None
    # A run that came to the end of its iterations saves there, logged or not.
    end = last if named is None or (segment.is_counted and last == planned) else named
    # Counted in rows or epochs, a validation after the last report is that of the end.
    is_last = last is None or (validation is not None and validation.iterations[-1] >= last)
    if validation is not None and (segment.is_counted or before is not None or is_last):
        validated = _validation(validation, before, end if segment.is_counted else None)
        if validated is not None:
            return validated
    if train is None:
        return None
    until = train.iterations <= (end or int(train.iterations[-1]))
    values = train.values[until][-2 * LAST_REPORTS :]
    if not len(values) or not np.isfinite(values).all():
        return None
    after, drift = median(values[-LAST_REPORTS:]), float(np.ptp(values))
    return LoggedLoss(after, drift, int(train.iterations[until][-1]), "train")


def rows_gone_over(config: TrainingConfig | None, log: TrainingLog | None) -> int:
    """How many rows training has seen, each time counted; 0 where that is unknown."""
    losses = log.main.get("train_loss") if log is not None else None
    iterations = config.iters or 0 if config is not None else 0
    if log is not None and losses is not None and log.main.is_counted:
        iterations = int(losses.iterations[-1])
    return iterations * (config.batch_size or 0) if config is not None else 0


def _validation(series: Series, before: float | None, end: int | None) -> LoggedLoss | None:
    first = 1 if before is not None else 0
    later = range(first, len(series))
    if not later:
        return None
    wanted = int(series.iterations[-1]) if end is None else end
    place = min(later, key=lambda i: (abs(int(series.iterations[i]) - wanted), -i))
    after = float(series.values[place])
    if not np.isfinite(after):
        return None
    # The validation comes before the update of its iteration, the save after it.
    missed = max(abs(wanted - int(series.iterations[place])), 1)
    drift = 0.0
    if place > 0 and np.isfinite(series.values[place - 1]):
        interval = max(int(series.iterations[place] - series.iterations[place - 1]), 1)
        drift = abs(after - float(series.values[place - 1])) * missed / interval
    return LoggedLoss(after, drift, int(series.iterations[place]), "valid")


def losses_shown(
    segment: Segment, base: BaseModel | None, rows: SupervisedRows | None
) -> Iterator[LossCurve]:
    """The curves of a log's segment, and what they can be compared with."""
    train, val = _curve(segment, "train_loss"), _curve(segment, "val_loss")
    if train is None and val is None:
        return
    start, floors = segment.base_val_loss, []
    if start is not None and math.isfinite(start):
        floors.append(Floor("the base model's own loss", start))
    if base is not None and base.vocab_size:
        guess = f"uniform guess, ln({base.vocab_size:,})"
        floors.append(Floor(guess, math.log(base.vocab_size)))
    if rows is not None and math.isfinite(entropy := rows.unigram_entropy()):
        floors.append(Floor("best constant guess", entropy))
    yield LossCurve(train, val, None, tuple(floors), segment.axis)


def _curve(segment: Segment, name: str) -> Curve | None:
    """The points to draw: all, or the lowest and highest of each stretch."""
    # A stretch with a value that is not finite keeps the first of those too.
    series = segment.get(name)
    if series is None:
        return None
    values, points = series.values, np.arange(len(series))
    if len(points) > MAX_POINTS:
        kept = [points[[0, -1]]]
        for stretch in np.array_split(points, MAX_POINTS // 2):
            is_finite = np.isfinite(values[stretch])
            by_size = stretch[is_finite][values[stretch[is_finite]].argsort()]
            kept += [by_size[:1], by_size[-1:], stretch[~is_finite][:1]]
        points = np.array(sorted(set(np.concatenate(kept).tolist())))
    return Curve(tuple(series.iterations[points].tolist()), tuple(values[points].tolist()))
