"""What the training log says of the model at the iterations at which it was saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.evidence.training_log import Segment, TrainingLog
from mlxdoctor.measure.losses.trend import Floats, noise

#: What counts iterations as the names of checkpoints do.
_AXES = ("iteration", "step")

_CALIBRATION = "0 of 126 sound runs of four base models"


@dataclass(frozen=True)
class LogLimits:
    """When a logged loss says that the model was lost."""

    ratio: float = limit(
        1.5,
        unit="loss over the lowest level before",
        source="the limit of loss-trend for a loss that exploded; the saves of sound runs are "
        "made at 1.10 times the lowest level at most",
        false_alarms=_CALIBRATION,
    )
    nats: float = limit(
        0.5,
        unit="nats above the lowest level before",
        source="small losses double with the batch; sound runs reach 0.06",
        false_alarms=_CALIBRATION,
    )
    noises: float = limit(
        4.0, unit="standard deviations of a report", source="a batch of hard rows is no blow-up"
    )
    share: float = limit(
        0.25,
        unit="rise of the loss over what had been learned",
        source="the saves of sound runs are at 0.02 at most; of 38 runs that broke on the way 28 "
        "are above it at the first broken save, and those whose rate leapt at 0.22 or more",
        false_alarms=_CALIBRATION,
    )
    risen_ratio: float = limit(
        1.2,
        unit="validation loss over its minimum",
        source="the limit of loss-trend; no two validations of sound runs rise above theirs",
        false_alarms=_CALIBRATION,
    )
    risen_nats: float = limit(
        0.2, unit="nats above the minimum", source="small losses double and halve with the batch"
    )


@dataclass(frozen=True)
class LoggedCourse:
    """The log, as far as the saves go.

    Attributes:
        losses: the reported training loss at or just before each save, in nats; None where the
            log has none.
        lost: which of the saves were made while the training loss was blown up.
        risen: which of them were made while the validation loss stood far above its minimum.
        onset: the first report of the blow-up that lasted to the end, or to the last save.
        before: the level before it, in nats.
        after: the loss at the last save, in nats.
        best: the iteration with the lowest validation loss; None with fewer than three.
        end_over_best: the last validation loss over the lowest; None with fewer than three.
        covers: whether the log reaches the last save.
    """

    losses: tuple[float | None, ...]
    lost: tuple[bool, ...]
    risen: tuple[bool, ...]
    onset: int | None
    before: float | None
    after: float | None
    best: int | None
    end_over_best: float | None
    covers: bool

    @property
    def story(self) -> str:
        """The blow-up as a clause; empty where there is none."""
        if self.onset is None or self.after is None:
            return ""
        if not isfinite(self.after):
            return f"the log's loss is not finite from iteration {self.onset} on"
        return (
            f"the log's loss blew up at iteration {self.onset}, from {self.before:.3g} to "
            f"{self.after:.3g}"
        )


def course(
    log: TrainingLog | None, iterations: Sequence[int], limits: LogLimits
) -> LoggedCourse | None:
    """What the log says at each of the saves.

    Args:
        log: the run's log.
        iterations: rising, of the saves; a save may be made twice at the same.
        limits: when the loss is blown up.

    Returns:
        None where the log has no loss by iteration, or is one of preference training.
    """
    if log is None or log.is_preference or log.main.axis not in _AXES or not iterations:
        return None
    series = log.main.get("train_loss")
    if series is None or not len(series):
        return None
    at, values = series.iterations, series.values
    known = _places(at, iterations)
    smooth = _smoothed(values, _width(at, iterations))
    start = log.main.base_val_loss
    needed = max(limits.nats, limits.noises * _noise(values))
    bad, reference = _blown_up(smooth, start, needed, limits)
    last = int(known[-1])
    onset = _onset(bad[: last + 1]) if last >= 0 else None
    best, end_over_best = _best(log.main)
    return LoggedCourse(
        losses=tuple(float(values[place]) if place >= 0 else None for place in known),
        lost=tuple(_at(bad, int(place)) for place in known),
        risen=_risen(log.main, iterations, limits),
        onset=int(at[onset]) if onset is not None else None,
        before=float(reference[onset]) if onset is not None else None,
        after=float(values[last]) if last >= 0 else None,
        best=best,
        end_over_best=end_over_best,
        covers=int(at[-1]) >= iterations[-1] - _step(at),
    )


def _places(at: NDArray[np.int64], iterations: Sequence[int]) -> list[int]:
    """For each save the place of the last report up to it; -1 where there is none."""
    return [int(np.searchsorted(at, one, "right")) - 1 for one in iterations]


def _step(at: NDArray[np.int64]) -> int:
    return int(np.median(np.diff(at))) if len(at) > 1 else 0


def _width(at: NDArray[np.int64], iterations: Sequence[int]) -> int:
    """Reports to take a median of: an odd number that fits twice between two saves."""
    apart = np.diff(np.unique(iterations))
    between = (float(apart.min()) if len(apart) else float(iterations[0])) / max(_step(at), 1)
    return 2 * int(min(between / 4, 4)) + 1


def _noise(values: Floats) -> float:
    """Of single reports, before the lowest one where that is known: a blow-up is no noise."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0
    before = finite[: int(np.argmin(finite)) + 1]
    return min(noise(before), noise(finite)) if len(before) >= 4 else noise(finite)


def _smoothed(values: Floats, width: int) -> Floats:
    """Medians of `width` neighbours, fewer at the ends; a lasting NaN stays one."""
    half = width // 2
    return np.array(
        [
            np.median(values[max(0, i - half) : i + half + 1])
            if np.isfinite(values[max(0, i - half) : i + half + 1]).all()
            else values[i]
            for i in range(len(values))
        ]
    )


def _blown_up(
    values: Floats, base: float | None, needed: float, limits: LogLimits
) -> tuple[NDArray[np.bool_], Floats]:
    """Which reports are blown up, by `needed` nats at least, and the lowest level before each."""
    finite = np.isfinite(values)
    # The middle of three, so that one lucky batch is no level.
    filled = np.where(finite, values, np.inf)
    padded = np.concatenate([[filled[0]], filled, [filled[-1]]])
    level = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    start = base if base is not None and isfinite(base) else float(level[0])
    lowest = np.minimum.accumulate(np.concatenate([[start], level]))[:-1]
    with np.errstate(invalid="ignore"):
        rise = values - lowest
        much = (values > limits.ratio * lowest) | (rise > limits.share * (start - lowest))
        far = much & (rise > needed) & (values > lowest)
    return ~finite | far, lowest


def _at(bad: NDArray[np.bool_], place: int) -> bool:
    """Whether the report up to a save and the one after it are both blown up."""
    if place < 0 or not bad[place]:
        return False
    return bool(bad[place + 1]) if place + 1 < len(bad) else True


def _onset(bad: NDArray[np.bool_]) -> int | None:
    """The place of the first report of the bad ones at the end."""
    if not len(bad) or not bad[-1]:
        return None
    good = np.flatnonzero(~bad)
    return int(good[-1]) + 1 if len(good) else 0


def _risen(segment: Segment, iterations: Sequence[int], limits: LogLimits) -> tuple[bool, ...]:
    """Whether the validations around each save stand far above an earlier one."""
    losses = segment.get("val_loss")
    if losses is None or len(losses) < 3:
        return (False,) * len(iterations)
    values = np.where(np.isfinite(losses.values), losses.values, np.inf)
    lowest = np.minimum.accumulate(values)
    with np.errstate(invalid="ignore"):
        bad = (values > limits.risen_ratio * lowest) & (values - lowest > limits.risen_nats)
    found = []
    # A validation after n updates is reported at n or, before the next of them, at n + 1.
    for place in _places(losses.iterations - 1, iterations):
        # One validation may be of few rows: its neighbour must agree.
        other = place + 1 if place + 1 < len(bad) else place - 1
        found.append(place > 0 and bool(bad[place] and bad[other]))
    return tuple(found)


def _best(segment: Segment) -> tuple[int | None, float | None]:
    losses = segment.get("val_loss")
    finite = np.isfinite(losses.values) if losses is not None else np.zeros(0, bool)
    if losses is None or finite.sum() < 3:
        return None, None
    lowest = int(np.nanargmin(np.where(finite, losses.values, np.inf)))
    last = float(losses.values[finite][-1])
    return int(losses.iterations[lowest]), last / max(float(losses.values[lowest]), 1e-9)
