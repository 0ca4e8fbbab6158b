"""How long training will take, from steps that were timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit


@dataclass(frozen=True)
class TimingLimits:
    """What is not measured is put between these."""

    fastest_validation: float = limit(
        0.2,
        unit="of a training step, for a validation batch of the same size",
        source="a forward pass of three or four, where all layers are trained; rounded down",
    )
    slowest_validation: float = limit(
        0.8,
        unit="of a training step, for a validation batch of the same size",
        source="nearly all of a step is its forward pass where only the last layers are trained",
    )
    spread: float = limit(
        0.1,
        unit="of the whole",
        source="a choice: clocks change, and other programs take their turn",
    )


@dataclass(frozen=True)
class TimedStep:
    """A training step that was made and timed.

    Attributes:
        rows: rows of its batch.
        tokens: inputs of each row.
        seconds: what it took, nothing being compiled any more.
    """

    rows: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class PlannedLength:
    """How long a run is planned to be.

    Attributes:
        iterations: batches.
        batch_size: rows of a batch.
        widths: inputs of each batch of an epoch, as `planned_step.widths` gives them.
        validation_widths: likewise of the validation's batches; empty without one.
        steps_per_eval: iterations between two validations.
        val_batches: batches of a validation; -1 for all.
        save_every: iterations between two saves.
    """

    iterations: int
    batch_size: int
    widths: Sequence[int]
    validation_widths: Sequence[int] = ()
    steps_per_eval: int = 200
    val_batches: int = 25
    save_every: int = 100

    @property
    def validations(self) -> int:
        """How often mlx-lm validates: before the first iteration, every so many, at the last."""
        if not self.validation_widths or self.iterations < 1:
            return 0
        when = {
            1,
            self.iterations,
            *range(self.steps_per_eval, self.iterations + 1, self.steps_per_eval),
        }
        return len(when)

    @property
    def batches_a_validation(self) -> int:
        """Batches that each validation takes."""
        there = len(self.validation_widths)
        return there if self.val_batches == -1 else min(there, self.val_batches)

    @property
    def saves(self) -> int:
        """How often it saves: every so many iterations, and at the end."""
        return self.iterations // self.save_every + 1 if self.save_every > 0 else 1


@dataclass(frozen=True)
class TimeEstimate:
    """How long a run will take on this machine, everything else being idle.

    Attributes:
        seconds: the likeliest.
        low: the range's lower end.
        high: its upper end.
        step: seconds of an average step.
        step_range: the range of that.
        training: seconds of all steps.
        validation: seconds of all validations.
        saving: seconds of all saves; 0 where none was timed.
        sentence: what it rests on.
    """

    seconds: float
    low: float
    high: float
    step: float
    step_range: tuple[float, float]
    training: float
    validation: float
    saving: float
    sentence: str


def time_to_end(
    plan: PlannedLength,
    timed: Sequence[TimedStep],
    *,
    validated: Sequence[TimedStep] = (),
    save_seconds: float | None = None,
    limits: TimingLimits | None = None,
) -> TimeEstimate | None:
    """The time a run takes from its first iteration to its last; None without a timed step.

    Seconds are fitted as a constant, a part by tokens, and a part by tokens × length (the
    attention), none of them negative, as far as the lengths timed tell them apart.

    Args:
        plan: iterations, batches, validations.
        timed: training steps of one length or several, on this machine.
        validated: batches of a validation that were timed; put between two shares of a training
            step otherwise.
        save_seconds: what one save took; not counted otherwise.
        limits: for what was not timed.
    """
    limits = limits or TimingLimits()
    if not timed or not plan.widths or plan.iterations < 1:
        return None
    cost = _Cost.fitted(timed)
    steps = np.array([cost.of(plan.batch_size, width) for width in plan.widths])
    step = float(steps.mean())
    training = plan.iterations * step
    # Batches come in a new order each epoch: only an epoch begun and not ended is left to chance.
    begun = plan.iterations % len(steps)
    chance = 2 * float(steps.std()) * math.sqrt(begun * (1 - begun / len(steps)))
    count = plan.validations * plan.batches_a_validation
    of_validation = [cost.of(plan.batch_size, width) for width in plan.validation_widths]
    each = float(np.mean(of_validation)) if of_validation else 0.0
    trained = sum(cost.of(one.rows, one.tokens) for one in validated)
    if trained:
        low_share = high_share = share = sum(one.seconds for one in validated) / trained
    else:
        low_share, high_share = limits.fastest_validation, limits.slowest_validation
        share = math.sqrt(low_share * high_share)
    saving = plan.saves * (save_seconds or 0.0)
    spread = max(limits.spread, cost.misfit) + _beyond(plan, timed)
    seconds = training + share * each * count + saving
    return TimeEstimate(
        seconds,
        max(0.0, (1 - spread) * (training + low_share * each * count + saving) - chance),
        (1 + spread) * (training + high_share * each * count + saving) + chance,
        step,
        ((1 - spread) * step, (1 + spread) * step),
        training,
        share * each * count,
        saving,
        _sentence(plan, timed, count),
    )


@dataclass(frozen=True)
class _Cost:
    """Seconds of a step by what it holds."""

    weights: NDArray[np.float64]
    misfit: float

    @classmethod
    def fitted(cls, timed: Sequence[TimedStep]) -> _Cost:
        columns = np.array([_features(one.rows, one.tokens) for one in timed])
        seconds = np.array([one.seconds for one in timed])
        lengths = len({(one.rows, one.tokens) for one in timed})
        # One length tells the part by tokens, two the constant besides, three the attention.
        order = ((1,), (0, 1), (0, 1, 2))[min(lengths, 3) - 1]
        weights = np.zeros(3)
        weights[list(order)] = _nonnegative(columns[:, order], seconds)
        told = columns @ weights
        misfit = float(np.sqrt(np.mean(np.square((told - seconds) / seconds))))
        return cls(weights, misfit)

    def of(self, rows: int, tokens: int) -> float:
        return float(np.dot(_features(rows, tokens), self.weights))


def _features(rows: int, tokens: int) -> tuple[float, float, float]:
    return 1.0, float(rows * tokens), float(rows * tokens * tokens)


def _nonnegative(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares of the relative errors, columns with a negative weight left out one by one."""
    left = list(range(columns.shape[1]))
    scaled = columns / seconds[:, None]
    while True:
        found = np.linalg.lstsq(scaled[:, left], np.ones(len(seconds)), rcond=None)[0]
        if len(left) == 1 or found.min() >= 0:
            weights = np.zeros(columns.shape[1])
            weights[left] = np.maximum(found, 0)
            return weights
        # The attention's part and the constant may go; a part by tokens stays.
        left.pop(int(np.argmin(found)))


def _beyond(plan: PlannedLength, timed: Sequence[TimedStep]) -> float:
    """How far the run's batches lie outside what was timed, as a further share of the range."""
    longest = max(one.rows * one.tokens for one in timed)
    asked = plan.batch_size * max(plan.widths)
    return 0.1 * max(0.0, math.log2(asked / longest))


def _sentence(plan: PlannedLength, timed: Sequence[TimedStep], validated: int) -> str:
    lengths = sorted({one.tokens for one in timed})
    said = ", ".join(str(one) for one in lengths)
    words = f"{len(timed)} steps were timed, of {said} tokens a row; "
    words += f"the run has {plan.iterations} iterations"
    return f"{words} and {validated} batches of validation." if validated else f"{words}."
