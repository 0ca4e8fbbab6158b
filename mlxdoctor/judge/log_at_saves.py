"""What the training log says of the model at the iterations at which it was saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.series import Floats, noise, smoothed
from mlxdoctor.evidence.training_log import TrainingLog

# When a model that was saved at a report was lost already. At a save the loss stands 1.10 times and
# 0.06 nats above the lowest level before at most in sound runs: `EXPLODED_RATIO` and
# `DIVERGED_NATS` hold there too (0 of 126 sound runs of four base models). None of the next three
# was crossed by 36 healthy runs of the fixture model and 4 healthy users' logs.
#: Nats above a level: more than one noisy batch.
DIVERGED_NATS = 0.5
#: Loss over the level before: it told 15 faulty QLoRA runs from 3 healthy ones without error.
EXPLODED_RATIO = 1.5
#: Standard deviations of a report: a batch of hard rows is no blow-up.
_NOISES = 4.0
#: Rise of the loss over what had been learned: 0.02 at most at the saves of the same sound runs; of
#: 38 runs that broke on the way 28 are above it at the first broken save.
LOST_SHARE = 0.25


@dataclass(frozen=True)
class LoggedCourse:
    """The log, as far as the saves go.

    Attributes:
        losses: the reported training loss at or just before each save, in nats; None where the
            log has none.
        lost: which of the saves were made while the training loss was blown up.
        onset: the first report of the blow-up that lasted to the end, or to the last save.
        story: the blow-up as a clause; empty where there is none.
        covers: whether the log reaches the last save.
        validations: the validation loss reported at each save's iteration, in nats; None where
            there is none.
    """

    losses: tuple[float | None, ...]
    lost: tuple[bool, ...]
    onset: int | None
    story: str
    covers: bool
    validations: tuple[float | None, ...] = ()


def course(log: TrainingLog | None, iterations: Sequence[int]) -> LoggedCourse | None:
    """What the log says at each of the saves.

    Args:
        iterations: rising, of the saves; a save may be made twice at the same.

    Returns:
        None where the log has no loss by iteration, or is one of preference training.
    """
    # Checkpoints are called by their iteration.
    series = log.main.get("train_loss") if log is not None else None
    is_counted = log is not None and log.main.axis in ("iteration", "step")
    if log is None or series is None or log.is_preference or not is_counted or not iterations:
        return None
    interval = int(np.median(np.diff(series.iterations))) if len(series) > 1 else 0
    apart = np.diff(np.unique(iterations))
    between = float(apart.min()) if len(apart) else float(iterations[0])
    # Reports to take a median of: an odd number that fits twice between two saves.
    width = 2 * int(min(between / max(interval, 1) / 4, 4)) + 1
    bad, level = blown_up(series.values, log.main.base_val_loss, width)
    # For each save the last report up to it; -1 where there is none.
    places = (np.searchsorted(series.iterations, iterations, "right") - 1).tolist()
    last = places[-1]
    good = np.flatnonzero(~bad[: last + 1])
    onset, story = None, ""
    if last >= 0 and bad[last]:
        place = int(good[-1]) + 1 if len(good) else 0
        onset, after = int(series.iterations[place]), float(series.values[last])
        story = f"the log's loss is not finite from {log.main.unit} {onset} on"
        if isfinite(after):
            levels = f"from {level[place]:.3g} to {after:.3g}"
            story = f"the log's loss blew up at {log.main.unit} {onset}, {levels}"
    validations = log.main.finite("val_loss")
    # A validation after n updates is reported at n or, before the next of them, at n + 1.
    validated = dict(zip(validations.iterations.tolist(), validations.values.tolist(), strict=True))
    return LoggedCourse(
        losses=tuple(float(series.values[place]) if place >= 0 else None for place in places),
        # The report after a save must agree with the one up to it.
        lost=tuple(place >= 0 and bool(bad[place : place + 2].all()) for place in places),
        onset=onset,
        story=story,
        covers=int(series.iterations[-1]) >= iterations[-1] - interval,
        validations=tuple(validated.get(save, validated.get(save + 1)) for save in iterations),
    )


def blown_up(values: Floats, start: float | None, width: int) -> tuple[NDArray[np.bool_], Floats]:
    """At which reports the loss is not finite, or far above the lowest level before them.

    Args:
        values: float64 (n,), the training losses.
        start: the untouched model's loss, where it is known.
        width: reports, an odd number, to take a median of.

    Returns:
        bool (n,), and that level, float64 (n,).
    """
    known = np.where(np.isfinite(values), values, np.nan)
    finite = known[np.isfinite(known)]
    sigma = noise(finite)
    # Before the lowest report, where that is known: a blow-up is no noise.
    if len(before := finite[: int(np.argmin(finite)) + 1] if len(finite) else finite) >= 4:
        sigma = min(sigma, noise(before))
    needed = max(DIVERGED_NATS, _NOISES * sigma)
    medians = smoothed(np.pad(known, width // 2, mode="edge"), width)
    # What is not finite is not smoothed away.
    smooth = np.where(np.isfinite(medians), medians, known)
    # The middle of three, so that one lucky batch is no level.
    filled = np.where(np.isfinite(smooth), smooth, np.inf)
    level = smoothed(np.pad(filled, 1, mode="edge"), 3)
    first = start if start is not None and isfinite(start) else float(level[0])
    lowest = np.minimum.accumulate(np.concatenate([[first], level]))[:-1]
    with np.errstate(invalid="ignore"):
        is_share = smooth - lowest > LOST_SHARE * (first - lowest)
        much = (smooth > EXPLODED_RATIO * lowest) | is_share
        far = much & (smooth - lowest > needed) & (smooth > lowest)
    return ~np.isfinite(smooth) | far, lowest
