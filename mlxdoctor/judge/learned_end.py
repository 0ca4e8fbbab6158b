"""What a model learned of the end token, by the losses of the rows it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.measure.losses.row_changes import (
    ChangeLimits,
    LossChange,
    change,
    is_likely,
    region,
)
from mlxdoctor.models.losses import RowLosses


@dataclass(frozen=True)
class EndLimits(ChangeLimits):
    """When the end token was not learned, or unlearned."""

    sure_end: float = limit(
        0.8,
        unit="probability of the end token after a complete answer",
        source="0.55 where it was left out of the loss; 0.95 and more in sound runs that end",
        false_alarms="0 of 4 sound runs of the fixtures",
    )
    end_worse: float = limit(
        0.3,
        unit="nats by which the end token's loss rose, while answers were learned",
        source="designed; rows that end with it make it likelier",
        false_alarms="0 of 4 sound runs of the fixtures",
    )
    to_learn: float = limit(
        0.3, unit="nats per token", source="below, the base model already knows the answers"
    )
    unlikely: float = limit(0.1, unit="probability", source="never the greedy choice in practice")


@dataclass(frozen=True)
class LearnedEnd:
    """What was learned of the end token after a complete answer.

    Attributes:
        after: the change of its loss there.
        answers: the change of the loss on the answers themselves.
        is_unlearned: whether it is not expected there as it should be.
        is_certain: whether it was forgotten, or left out of a loss from which answers were learned.
        while_learning: whether the answers were learned, and it was not forgotten.
    """

    after: LossChange
    answers: LossChange
    is_unlearned: bool
    is_certain: bool
    while_learning: bool


def learned_end(rows: Sequence[RowLosses], limits: EndLimits) -> LearnedEnd | None:
    """What was learned of the end token; None of too few rows.

    Args:
        rows: that both models read.
        limits: what shows that it was learned.
    """
    trained = [row for row in rows if row.split == "train"]
    # Of rows held out it need not know where an answer ends.
    kept = trained if len(trained) >= limits.rows else rows
    after = change(kept, lambda one: one.end_after_answer)
    if len(after.gains) < limits.rows:
        return None
    has_end = [row for row in kept if np.any(row.roles == Role.END)]
    answers = region(kept, 1, Role.ANSWER)
    learned = len(has_end) >= limits.rows and answers.fell(limits.significance, limits.to_learn)
    is_unlikely = not is_likely(after.tuned, limits.unlikely)
    had_it = is_likely(after.base, limits.likely)
    forgot = had_it and is_unlikely and after.rose(limits.significance)
    # Training on rows with an end token makes it likelier, if anything.
    left_out = (
        learned
        and not is_likely(after.tuned, limits.sure_end)
        and after.rose(limits.significance, limits.end_worse)
    )
    is_certain = forgot or left_out
    is_unlearned = is_certain or (learned and is_unlikely and after.gain <= 0)
    return LearnedEnd(after, answers, is_unlearned, is_certain, learned and not forgot)
