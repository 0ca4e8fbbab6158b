"""Rows with made-up losses, for what compares losses without running a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.evidence.supervision import Role
from mlxdoctor.models.losses import RowLosses, RowPass

PROMPT, ANSWER = 5, 6
#: A prompt, an answer, the end token and a line break after it.
ROLES = np.array([Role.PROMPT] * PROMPT + [Role.ANSWER] * ANSWER + [Role.END, Role.OTHER], np.int8)
TOKENS = np.arange(10, 10 + len(ROLES), dtype=np.int32)


@dataclass(frozen=True)
class Losses:
    """A made-up model: its loss on each part of a row, nats a token.

    Attributes:
        shifted: on every token at another shift than the next, by shift.
    """

    prompt: float = 2.0
    answer: float = 4.0
    end: float = 4.0
    other: float = 4.0
    padding: float = 4.0
    shifted: float = 9.0

    def row(self, noise: float = 0.0, at_shift: dict[int, float] | None = None) -> RowPass:
        """Losses of one row, `noise` added to each."""
        by_role = {
            Role.PROMPT: self.prompt,
            Role.ANSWER: self.answer,
            Role.END: self.end,
            Role.OTHER: self.other,
        }
        following = np.array([by_role[Role(role)] for role in ROLES[1:]], np.float32) + noise
        elsewhere = {
            shift: np.full(
                len(ROLES) - shift, (at_shift or {}).get(shift, self.shifted), np.float32
            )
            for shift in (0, 2, 3)
        }
        return RowPass(
            shifted={**elsewhere, 1: following.astype(np.float32)},
            end_at_start=9.0,
            end_after_answer=self.end,
            padding={0: np.full(6, self.padding + noise, np.float32)},
            greedy_at_start=None,
            greedy_after_answer=None,
        )


def measured_rows(
    base: Losses,
    tuned: Losses | None,
    count: int = 40,
    *,
    split: str = "valid",
    spread: float = 0.0,
    is_whole: bool = True,
    at_shift: Sequence[dict[int, float]] = ({}, {}),
) -> tuple[RowLosses, ...]:
    """Rows on which both models have these losses, the rows `spread` apart on the whole."""
    noises = np.linspace(-spread / 2, spread / 2, count).tolist()
    return tuple(
        RowLosses(
            split,
            i,
            TOKENS,
            ROLES,
            base.row(noise, at_shift[0]),
            tuned.row(noise, at_shift[1]) if tuned is not None else None,
            prompt_length=PROMPT,
            is_whole=is_whole,
        )
        for i, noise in enumerate(noises)
    )
