"""Rows with made-up losses, for what compares losses without running a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
        shifted: on every token at another shift than the next; `at_shift` has others.
        end_after_answer: of the end token after the answer; `end` where it is None.
        pads: pad id -> of it after the row, and of the same again; `padding` twice where empty.
    """

    prompt: float = 2.0
    answer: float = 4.0
    end: float = 4.0
    other: float = 4.0
    padding: float = 4.0
    shifted: float = 9.0
    at_shift: Mapping[int, float] = field(default_factory=dict)
    end_after_answer: float | None = None
    greedy_at_start: int | None = None
    greedy_after_answer: int | None = None
    pads: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    def row(self, noise: float = 0.0) -> RowPass:
        """Losses of one row, `noise` added to each."""
        by_role = {
            Role.PROMPT: self.prompt,
            Role.ANSWER: self.answer,
            Role.END: self.end,
            Role.OTHER: self.other,
        }
        following = np.array([by_role[Role(role)] for role in ROLES[1:]], np.float32) + noise
        elsewhere = {
            shift: np.full(len(ROLES) - shift, self.at_shift.get(shift, self.shifted), np.float32)
            for shift in (0, 2, 3)
        }
        pads = self.pads or {0: (self.padding, self.padding)}
        return RowPass(
            shifted={**elsewhere, 1: following.astype(np.float32)},
            end_after_answer=self.end if self.end_after_answer is None else self.end_after_answer,
            padding={
                pad: np.array([first, *[rest] * 5], np.float32) + np.float32(noise)
                for pad, (first, rest) in pads.items()
            },
            greedy_at_start=self.greedy_at_start,
            greedy_after_answer=self.greedy_after_answer,
        )


def measured_rows(
    base: Losses,
    tuned: Losses | None,
    count: int = 40,
    *,
    split: str = "valid",
    spread: float = 0.0,
) -> tuple[RowLosses, ...]:
    """Rows on which both models have these losses, the rows `spread` apart on the whole."""
    noises = np.linspace(-spread / 2, spread / 2, count).tolist()
    return tuple(
        RowLosses(
            split,
            i,
            TOKENS,
            ROLES,
            base.row(noise),
            tuned.row(noise) if tuned is not None else None,
            prompt_length=PROMPT,
        )
        for i, noise in enumerate(noises)
    )
