"""The loss is thrown off its course.

What it finds. Lone losses that stand far above their neighbours, and bursts: stretches of
reports in which the loss lies well above a level that it had already reached, whether or not
it comes down again.

Why it matters. A lone spike is a batch, and is forgotten. A burst means that the weights were
thrown out of where they were: the steps are at the edge of what the model can bear, and what
is saved during or after a burst is worse than what was there before.

How it is measured. A spike stands above the medians of three neighbours on both sides, by
several times the noise of the curve. A burst is a run of consecutive reports above the lowest
median of five reports so far, by a ratio and by several noises; noise is a robust standard
deviation from second differences.

When it is wrong. Where the data change on the way (a curriculum, sorted rows) the loss may
rise for that reason. Losses of preference training mean something else and are not judged.

What to do. For a lone spike look at the rows of that batch. For a burst divide the learning
rate by three to ten, warm up, clip gradients, and prefer a checkpoint saved before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.curve import above
from mlxdoctor.measure.losses.trend import Floats, noise


@dataclass(frozen=True)
class Limits:
    """When a loss is thrown off its course."""

    spike_sigmas: float = limit(
        8.0, unit="noises above both neighbours", source="7 is a usual spike score"
    )
    spike_ratio: float = limit(2.0, unit="times its neighbours", source="smaller ones are batches")
    spike_nats: float = limit(0.5, unit="nats above its neighbours", source="one noisy batch")
    great_spike: float = limit(10.0, unit="times its neighbours", source="Megatron's alarm")
    level_reports: int = limit(5, unit="reports", source="a median that one batch can't move")
    burst_ratio: float = limit(
        1.2,
        unit="loss over the level reached",
        source="what sound runs with batches of one stay below for so long",
        false_alarms="0 of 36 healthy runs of the fixture model",
    )
    burst_nats: float = limit(
        0.2, unit="nats above the level", source="small losses double and halve with the batch"
    )
    burst_sigmas: float = limit(4.0, unit="noises above the level", source="three are chance")
    burst_reports: int = limit(
        4, unit="consecutive reports", source="three in a row happen in runs with batches of one"
    )


@check(
    codes={
        "spiked": Symptom.info(
            "lone losses stand far above their neighbours, and it recovered",
            "losses that differ no more than batches do",
            "Look at the rows of that batch; clip gradients if it recurs.",
        ),
        "burst": Symptom.warning(
            "for several reports the loss lay well above a level it had reached",
            fix="Lower the learning rate, or clip gradients; prefer a checkpoint "
            "saved before this.",
        ),
    },
    limits=Limits(),
    marks_onset=True,
    rerun_symptom=True,
)
def loss_stability(log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    """Look for spikes and bursts in the log's main segment."""
    losses = log.main.finite("train_loss")
    if log.main.get("train_loss") is None:
        raise Inconclusive("the log holds no training loss")
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no level to leave")
    if len(losses) < limits.level_reports:
        raise Inconclusive(
            f"{len(losses)} finite training losses; {limits.level_reports} are needed"
        )
    yield from _spiked(losses, log.main.unit, limits)
    yield from _burst(losses, log.main.unit, limits)


def _burst(losses: Series, unit: str, limits: Limits) -> Iterator[Sign]:
    level = _level_reached(losses.values, limits.level_reports)
    least = max(limits.burst_nats, limits.burst_sigmas * noise(losses.values))
    high = above(losses.values, level, limits.burst_ratio, least)
    first, length = _longest_run(high)
    if length < limits.burst_reports:
        return
    inside = slice(first, first + length)
    peak = float(losses.values[inside].max())
    begins, ends = (int(losses.iterations[i]) for i in (first, first + length - 1))
    reached = float(level[first])
    yield Sign(
        "burst",
        f"From {unit} {begins} to {ends} the loss lay above the {reached:.3f} it had reached, "
        f"up to {peak:.3f}.",
        {
            "level_reached": reached,
            "peak": peak,
            "reports": length,
            "until": ends,
            "last_loss": float(losses.values[-1]),
        },
        expected=f"at most {limits.burst_ratio:g} times the level reached",
        onset=begins,
    )


def _level_reached(values: Floats, width: int) -> Floats:
    """The lowest median of `width` reports before each report, (n,); infinity at the start."""
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    level = np.full(len(values), np.inf)
    level[width:] = np.minimum.accumulate(medians)[: len(values) - width]
    return level


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """Start and length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def _spiked(losses: Series, unit: str, limits: Limits) -> Iterator[Sign]:
    y, x = losses.values, losses.iterations
    # Above both sides: on a steep slope every point stands above those that follow.
    padded = np.pad(y, 3, mode="edge")
    medians = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
    around = np.maximum(medians[: len(y)], medians[4:])
    rise = y - around
    # The spikes themselves must not raise the noise they are measured against.
    sigma = noise(np.minimum(y, around + 3.0 * np.median(np.abs(rise))))
    least = max(limits.spike_nats, limits.spike_sigmas * max(sigma, 1e-3))
    spikes = above(y, np.maximum(around, 1e-9), limits.spike_ratio, least)
    if not spikes.any():
        return
    highest = int(np.argmax(np.where(spikes, y, -np.inf)))
    ratio = float(y[highest] / max(around[highest], 1e-9))
    yield Sign(
        "spiked",
        f"{int(spikes.sum())} of {len(y)} losses stand far above the medians of the three reports "
        f"on either side; the highest of them is {y[highest]:.6g} at {unit} {int(x[highest])}, "
        f"{ratio:.1f} times the higher median.",
        {
            "spikes": int(spikes.sum()),
            "highest": float(y[highest]),
            "neighbours": float(around[highest]),
            "iterations": tuple(int(one) for one in x[spikes][:10]),
        },
        onset=int(x[np.argmax(spikes)]),
        severity=Severity.WARNING if ratio > limits.great_spike else None,
    )
