"""What the training log says of the model at the iterations at which it was saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.engines.series import Floats, noise
from mlxdoctor.evidence.training_log import Segment, TrainingLog
from mlxdoctor.judge.curve import Limits, above

#: What counts iterations as the names of checkpoints do.
_AXES = ("iteration", "step")


_AT_SAVES = "0 of 126 sound runs of four base models"


@dataclass(frozen=True)
class LogLimits(Limits):
    """What bisect adds: when a model that was saved at a report was lost already.

    At a save the loss stands 1.10 times and 0.06 nats above the lowest level before at most in
    sound runs: `exploded_ratio` and `diverged_nats` hold there too (0 of 126 sound runs).
    """

    noises: float = limit(
        4.0, unit="standard deviations of a report", source="a batch of hard rows is no blow-up"
    )
    share: float = limit(
        0.25,
        unit="rise of the loss over what had been learned",
        source="the saves of sound runs are at 0.02 at most; of 38 runs that broke on the way 28 "
        "are above it at the first broken save, and those whose rate leapt at 0.22 or more",
        false_alarms=_AT_SAVES,
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
        validations: the validation loss reported at each save's iteration, in nats; None where
            there is none.
        unit: what the log counts, as `Segment.unit`.
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
    validations: tuple[float | None, ...] = ()
    unit: str = "iteration"

    @property
    def story(self) -> str:
        """The blow-up as a clause; empty where there is none."""
        if self.onset is None or self.after is None:
            return ""
        if not isfinite(self.after):
            return f"the log's loss is not finite from {self.unit} {self.onset} on"
        return (
            f"the log's loss blew up at {self.unit} {self.onset}, from {self.before:.3g} to "
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
    width = _width(at, iterations)
    bad, reference = blown_up(values, log.main.base_val_loss, width, limits)
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
        validations=_validations(log.main, iterations),
        unit=log.main.unit,
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
    bad = risen_validations(losses.values, limits)
    found = []
    # A validation after n updates is reported at n or, before the next of them, at n + 1.
    for place in _places(losses.iterations - 1, iterations):
        # One validation may be of few rows: its neighbour must agree.
        other = place + 1 if place + 1 < len(bad) else place - 1
        found.append(place > 0 and bool(bad[place] and bad[other]))
    return tuple(found)


def _validations(segment: Segment, iterations: Sequence[int]) -> tuple[float | None, ...]:
    losses = segment.get("val_loss")
    if losses is None:
        return (None,) * len(iterations)
    values = dict(zip(losses.iterations.tolist(), losses.values.tolist(), strict=True))
    # A validation after n updates is reported at n or, before the next of them, at n + 1.
    found = [
        next((values[at] for at in (one, one + 1) if at in values), None) for one in iterations
    ]
    return tuple(one if one is not None and isfinite(one) else None for one in found)


def _best(segment: Segment) -> tuple[int | None, float | None]:
    losses = segment.finite("val_loss")
    if len(losses) < 3:
        return None, None
    lowest, last = int(np.argmin(losses.values)), float(losses.values[-1])
    return int(losses.iterations[lowest]), last / max(float(losses.values[lowest]), 1e-9)


def blown_up(
    values: Floats, start: float | None, width: int, limits: LogLimits
) -> tuple[NDArray[np.bool_], Floats]:
    """At which reports the loss is not finite, or far above the lowest level before them.

    Args:
        values: float64 (n,), the training losses.
        start: the untouched model's loss, where it is known.
        width: reports, an odd number, to take a median of.

    Returns:
        bool (n,), and that level, float64 (n,).
    """
    needed = max(limits.diverged_nats, limits.noises * _noise_before(values))
    smooth = _smoothed(values, width)
    finite = np.isfinite(smooth)
    # The middle of three, so that one lucky batch is no level.
    filled = np.where(finite, smooth, np.inf)
    padded = np.concatenate([[filled[0]], filled, [filled[-1]]])
    level = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    first = start if start is not None and isfinite(start) else float(level[0])
    lowest = np.minimum.accumulate(np.concatenate([[first], level]))[:-1]
    with np.errstate(invalid="ignore"):
        is_share = smooth - lowest > limits.share * (first - lowest)
        much = (smooth > limits.exploded_ratio * lowest) | is_share
        far = much & (smooth - lowest > needed) & (smooth > lowest)
    return ~finite | far, lowest


def risen_validations(values: Floats, limits: Limits) -> NDArray[np.bool_]:
    """Which validation losses, float64 (n,), stand far above an earlier one."""
    filled = np.where(np.isfinite(values), values, np.inf)
    with np.errstate(invalid="ignore"):
        lowest = np.minimum.accumulate(filled)
        return np.asarray(above(filled, lowest, limits.overfitted, limits.risen_nats))


def _noise_before(values: Floats) -> float:
    """Of single reports, before the lowest one where that is known: a blow-up is no noise."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0
    before = finite[: int(np.argmin(finite)) + 1]
    return min(noise(before), noise(finite)) if len(before) >= 4 else noise(finite)


def _smoothed(values: Floats, width: int) -> Floats:
    """Medians of `width` neighbours, fewer at the ends; a lasting NaN stays one."""
    half = width // 2
    around = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return np.array(
        [
            np.median(near) if np.isfinite(near).all() else value
            for near, value in zip(around, values, strict=True)
        ]
    )
