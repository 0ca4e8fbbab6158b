"""How well the base and the tuned model predict each token of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RowPass:
    """One model's losses on one row, in nats: minus the log-probability of each target.

    Attributes:
        identity: float32 (n,), position i against token i, the token it was just given.
        next: float32 (n - 1,), position i against token i + 1: what a language model does.
        skip: float32 (n - 2,), position i against token i + 2.
        end_at_start: of the end token where the answer should begin; NaN without an answer.
        end_after_answer: of the end token where the answer is over; NaN without an answer.
        padding: pad id -> float32 (p,), of that id at the p places after the row, each
            place having the same id before it. The first is what mlx-lm trains in every row.
        greedy_at_start: the likeliest token where the answer should begin; None without one.
        greedy_after_answer: the likeliest token where the answer is over; None without one.
        skip_two: float32 (n - 3,), position i against token i + 3; None where not measured.
        previous: float32 (n + 1,), position i + 1 against token i, the one before that it was
            given; the last two are given padding, and the last is of padding. None where not
            measured.
    """

    identity: Floats
    next: Floats
    skip: Floats
    end_at_start: float
    end_after_answer: float
    padding: Mapping[int, Floats]
    greedy_at_start: int | None
    greedy_after_answer: int | None
    skip_two: Floats | None = None
    previous: Floats | None = None

    def shifted(self, shift: int) -> Floats:
        """The losses at shift -1 (previous), 0 (identity), 1 (next), 2 (skip) or 3 (skip two).

        The first of them is that of the first token at shifts up to 0, of token `shift` else.

        Raises:
            ValueError: nothing was measured at that shift.
        """
        losses = (self.identity, self.next, self.skip, self.skip_two, self.previous)[shift]
        if losses is None:
            raise ValueError(f"nothing was measured at shift {shift}")
        return losses


@dataclass(frozen=True)
class RowLosses:
    """Both models' losses on one row.

    Attributes:
        split: the split of the data it comes from.
        index: its index in the split.
        tokens: int32 (n,), as the trainer sees them.
        roles: int8 (n,), the region of each token, as in `SupervisedRow`.
        base: the base model's losses.
        tuned: the tuned model's; None where it could not be made.
        prompt_length: tokens before the last answer; 0 for rows of plain text.
        is_padded: whether mlx-lm also trains on the padding token after the row.
        is_whole: whether all that the trainer sees of the row was measured.
    """

    split: str
    index: int
    tokens: NDArray[np.int32]
    roles: NDArray[np.int8]
    base: RowPass
    tuned: RowPass | None
    prompt_length: int = 0
    is_padded: bool = True
    is_whole: bool = True

    def fits_together(self) -> bool:
        """Whether the arrays have the shapes that are said above."""
        n = len(self.tokens)
        passes = [self.base, *([] if self.tuned is None else [self.tuned])]
        return self.roles.shape == self.tokens.shape == (n,) and all(
            one.identity.shape == (n,)
            and one.next.shape == (max(n - 1, 0),)
            and one.skip.shape == (max(n - 2, 0),)
            and (one.skip_two is None or one.skip_two.shape == (max(n - 3, 0),))
            and (one.previous is None or one.previous.shape == (n + 1,))
            and all(losses.ndim == 1 for losses in one.padding.values())
            for one in passes
        )
