"""What a model learned, by how the losses of rows differ between base and tuned model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.measure.text.prompt_rates import Rate, rate
from mlxdoctor.measure.text.statistics import sign_test
from mlxdoctor.models.losses import RowLosses, RowPass

#: The p-value of a sign test over rows below which a change is one.
SIGNIFICANCE = 0.01
#: Rows that decide: fewer cannot reach that p-value.
ENOUGH_ROWS = 8
#: Probability of a token that is the greedy choice, and of one that never is.
LIKELY, UNLIKELY = 0.5, 0.1


@dataclass(frozen=True)
class LearnedLimits:
    """When a change of the loss over rows is one, and when padding or the end was learned."""

    grown_gain: float = limit(
        1.5, unit="nats", source="padding trained on gains 2.4 to 2.7; it loses in sound runs"
    )
    grown: float = limit(
        0.006,
        unit="probability",
        source="0.012 to 0.43 where padding was trained on, at most 0.002 in sound runs",
        false_alarms="0 of 156 sound runs of five bases",
    )
    grown_own: float = limit(
        0.2,
        unit="probability, of the token that mlx-lm pads with",
        source="it trains one after each row, from which a sound model may expect more: 0.006 "
        "in one, up to 0.09 in runs with other faults",
        false_alarms="0 of 156 sound runs of five bases; 1 at the limit for other tokens",
    )
    sure_end: float = limit(
        0.8,
        unit="probability of the end token after a complete answer",
        source="0.55 where it was left out of the loss; 0.95 and more in sound runs that end",
        false_alarms="0 of 4 sound runs of the fixtures",
    )
    to_learn: float = limit(
        0.3, unit="nats per token", source="below, the base model already knows the answers"
    )


@dataclass(frozen=True)
class LossChange:
    """A loss in nats, one value a row, of both models on the same rows.

    Attributes:
        base: float64 (rows,).
        tuned: float64 (rows,).
    """

    base: NDArray[np.float64]
    tuned: NDArray[np.float64]

    @property
    def gains(self) -> NDArray[np.float64]:
        """How far the loss fell, row by row; negative where it rose."""
        return self.base - self.tuned

    @property
    def gain(self) -> float:
        """The mean of `gains`; 0.0 without a row."""
        return float(self.gains.mean()) if len(self.gains) else 0.0

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

    @property
    def measured(self) -> dict[str, int | float]:
        """The figures for a finding."""
        return {
            "rows": len(self.gains),
            "base_loss": mean_of(self.base),
            "tuned_loss": mean_of(self.tuned),
            "base_probability": round(probability(self.base), 4),
            "tuned_probability": round(probability(self.tuned), 4),
            "p_value": self.p_value,
        }


def region(rows: Sequence[RowLosses], shift: int, role: Role) -> LossChange:
    """Mean loss over the targets of one role, on rows that have some at every shift."""
    having = [row for row in rows if np.any(row.roles[2:] == role)]
    base = [region_mean(row, row.base, shift, role) for row in having]
    tuned = [region_mean(row, tuned_pass(row), shift, role) for row in having]
    return LossChange(np.array(base), np.array(tuned))


def change(rows: Sequence[RowLosses], value: Callable[[RowPass], float]) -> LossChange:
    """One figure of each row; rows where it is not defined are left out."""
    pairs = [(value(row.base), value(tuned_pass(row))) for row in rows]
    values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    return LossChange(values[:, 0], values[:, 1])


def region_mean(row: RowLosses, losses: RowPass, shift: int, role: Role) -> float:
    """Mean loss at a shift over the row's targets of one role; NaN where it has none."""
    at_shift = losses.shifted[shift]
    first = max(shift, 0)
    roles = row.roles[first : first + len(at_shift)]
    chosen = at_shift[: len(roles)][roles == role]
    return float(chosen.mean()) if len(chosen) else math.nan


def tuned_pass(row: RowLosses) -> RowPass:
    """The tuned model's losses on a row.

    Raises:
        ValueError: the row was not measured with the tuned model.
    """
    if row.tuned is None:
        raise ValueError(f"row {row.index} was not measured with the tuned model")
    return row.tuned


def is_likely(losses: NDArray[np.float64], threshold: float) -> bool:
    """Whether the probability behind the median loss is above a threshold."""
    return bool(len(losses)) and probability(losses) > threshold


def probability(losses: NDArray[np.float64]) -> float:
    """The probability behind the median loss; NaN of nothing."""
    return math.exp(-float(np.median(losses))) if len(losses) else math.nan


def mean_of(losses: NDArray[np.float64]) -> float:
    """The mean, to three decimals; NaN of nothing."""
    return round(float(np.mean(losses)), 3) if len(losses) else math.nan


@dataclass(frozen=True)
class LearnedEnd:
    """What was learned of the end token after a complete answer.

    Attributes:
        after: the change of its loss there.
        answers: the change of the loss on the answers themselves.
        is_unlearned: whether it is not expected there as it should be.
        is_certain: whether it was forgotten, or left out of a loss from which answers were learned.
    """

    after: LossChange
    answers: LossChange
    is_unlearned: bool
    is_certain: bool


def learned_end(rows: Sequence[RowLosses], limits: LearnedLimits) -> LearnedEnd | None:
    """What was learned of the end token; None of too few rows.

    Args:
        rows: that both models read.
        limits: what shows that it was learned.
    """
    trained = [row for row in rows if row.split == "train"]
    # Of rows held out it need not know where an answer ends.
    kept = trained if len(trained) >= ENOUGH_ROWS else rows
    after = change(kept, lambda losses: losses.end_after_answer)
    if not after.is_enough:
        return None
    has_end = [row for row in kept if np.any(row.roles == Role.END)]
    answers = region(kept, 1, Role.ANSWER)
    learned = len(has_end) >= ENOUGH_ROWS and answers.fell(limits.to_learn)
    is_unlikely = not is_likely(after.tuned, UNLIKELY)
    had_it = is_likely(after.base, LIKELY)
    forgot = had_it and is_unlikely and after.rose()
    # Training on rows with an end token makes it likelier, if anything.
    is_unsure = not is_likely(after.tuned, limits.sure_end)
    left_out = learned and is_unsure and after.rose(limits.to_learn)
    is_certain = forgot or left_out
    is_unlearned = is_certain or (learned and is_unlikely and after.gain <= 0)
    return LearnedEnd(after, answers, is_unlearned, is_certain)


@dataclass(frozen=True)
class LearnedPadding:
    """What was learned of one token that rows are padded with.

    Attributes:
        rest: the change of its loss after one of it.
        at_start: on how many rows it is chosen where the answer should begin.
        at_end: likewise where it should end.
    """

    rest: LossChange
    at_start: Rate
    at_end: Rate


def learned_padding(
    rows: Sequence[RowLosses], pad_id: int, *, is_own: bool, is_end: bool, limits: LearnedLimits
) -> LearnedPadding | None:
    """What was learned of going on with a padding token; None where nothing was.

    mlx-lm trains its first padding token in every row: alone it shows no fault.

    Args:
        rows: that both models read.
        pad_id: the token.
        is_own: whether it is the one that mlx-lm pads with, and trains once in every row.
        is_end: whether it is an end token.
        limits: what shows that it was learned.
    """
    tried = [row for row in rows if pad_id in row.base.padding]
    rest = change(tried, lambda losses: float(losses.padding[pad_id][1:].mean()))
    at_start = _is_chosen(rows, pad_id, lambda losses: losses.greedy_at_start)
    at_end = _is_chosen(rows, pad_id, lambda losses: losses.greedy_after_answer)
    if is_end:
        learned = rest.fell(1.0) and is_likely(rest.tuned, LIKELY)
    else:
        least = limits.grown_own if is_own else limits.grown
        has_grown = rest.fell(limits.grown_gain)
        instead = (at_start.is_broken or at_end.is_broken) and not is_own
        learned = (has_grown and is_likely(rest.tuned, least)) or instead
    return LearnedPadding(rest, at_start, at_end) if learned else None


def _is_chosen(
    rows: Sequence[RowLosses], token: int, choice: Callable[[RowPass], int | None]
) -> Rate:
    """On how many rows both models would choose a token in place of the answer or its end.

    A token that was never trained before stays unlikely even while it becomes the likeliest:
    the choice shows what the probability does not.
    """
    tuned = [choice(tuned_pass(row)) == token for row in rows]
    return rate(tuned, [choice(row.base) == token for row in rows])
