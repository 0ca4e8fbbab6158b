"""What a model learned of padding, by the losses of the rows it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mlxdoctor.check import limit
from mlxdoctor.measure.losses.row_changes import (
    ChangeLimits,
    LossChange,
    change,
    is_likely,
    tuned_pass,
)
from mlxdoctor.measure.text.prompt_rates import Rate, rate
from mlxdoctor.models.losses import RowLosses, RowPass

#: The likeliest token at some place of a row; None where the row has no such place.
Choice = Callable[[RowPass], int | None]


@dataclass(frozen=True)
class PaddingLimits(ChangeLimits):
    """When padding was learned."""

    noticeable: float = limit(
        0.05, unit="probability", source="fixtures: 0.1 after sound runs of mlx-lm, 0.0 before"
    )
    padding_gain: float = limit(1.0, unit="nats", source="the id became at least e times likelier")
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


@dataclass(frozen=True)
class LearnedPadding:
    """What was learned of one token that rows are padded with.

    Attributes:
        what: "first": to expect it right after a row; "more": to go on with it; "end": to go
            on with it, where it is the end token.
        first: the change of its loss right after a row.
        rest: likewise after one of it.
        at_start: on how many rows it is chosen where the answer should begin.
        at_end: likewise where it should end.
    """

    what: Literal["first", "more", "end"]
    first: LossChange
    rest: LossChange
    at_start: Rate
    at_end: Rate


def learned_padding(
    rows: Sequence[RowLosses], pad_id: int, *, is_own: bool, is_end: bool, limits: PaddingLimits
) -> LearnedPadding | None:
    """What was learned of a padding token; None where nothing was.

    Args:
        rows: that both models read.
        pad_id: the token.
        is_own: whether it is the one that mlx-lm pads with, and trains once in every row.
        is_end: whether it is an end token.
        limits: what shows that it was learned.
    """
    tried = [row for row in rows if pad_id in row.base.padding]
    first = change(tried, partial(_first_padding, pad_id))
    rest = change(tried, partial(_later_padding, pad_id))
    # mlx-lm trains its first padding token in every row: alone it shows no fault.
    has_grown = rest.fell(limits.significance, limits.grown_gain) and is_likely(
        rest.tuned, limits.grown_own if is_own else limits.grown
    )
    at_start = _is_chosen(rows, pad_id, lambda one: one.greedy_at_start)
    at_end = _is_chosen(rows, pad_id, lambda one: one.greedy_after_answer)
    instead = (at_start.is_broken or at_end.is_broken) and not is_own

    def learned(what: Literal["first", "more", "end"]) -> LearnedPadding:
        return LearnedPadding(what, first, rest, at_start, at_end)

    if is_end and _is_padded(rest, limits.likely, limits):
        return learned("end")
    if not is_end and (has_grown or instead):
        return learned("more")
    return learned("first") if _is_padded(first, limits.noticeable, limits) else None


def _is_padded(one: LossChange, least: float, limits: PaddingLimits) -> bool:
    """Whether padding became much likelier, and is likely now."""
    return one.fell(limits.significance, limits.padding_gain) and is_likely(one.tuned, least)


def _first_padding(pad_id: int, one: RowPass) -> float:
    """The loss of a padding token right after the row."""
    return float(one.padding[pad_id][0])


def _later_padding(pad_id: int, one: RowPass) -> float:
    """The mean loss of more padding tokens, after the first."""
    return float(one.padding[pad_id][1:].mean())


def _is_chosen(rows: Sequence[RowLosses], token: int, choice: Choice) -> Rate:
    """On how many rows both models would choose a token in place of the answer or its end.

    A token that was never trained before stays unlikely even while it becomes the likeliest:
    the choice shows what the probability does not.
    """
    tuned = [choice(tuned_pass(row)) == token for row in rows]
    return rate(tuned, [choice(row.base) == token for row in rows])
