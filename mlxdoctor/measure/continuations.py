"""How likely a model finds one text after another: the loss of each token of a continuation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.measure.forward import Question, predict
from mlxdoctor.measure.row_losses import Floats


@dataclass(frozen=True)
class Continuation:
    """Tokens that a model reads, of which the later ones are to be predicted.

    Attributes:
        tokens: int32 (n,).
        start: the place of the first token to predict, from 1 to n - 1.
    """

    tokens: NDArray[np.int32]
    start: int

    @classmethod
    def of(cls, before: Sequence[int], after: Sequence[int]) -> Continuation:
        """`after` to be predicted after `before`; neither may be empty."""
        return cls(np.array([*before, *after], np.int32), len(before))


def continuation_losses(
    model: Any,
    asked: Sequence[Continuation],
    progress: Callable[[int, int], None] | None = None,
) -> list[Floats]:
    """The losses of the tokens to predict, nats, float32 (n - start,) each, in order.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    questions = [
        Question(one.tokens[:-1], one.tokens[one.start :, None].astype(np.int32)) for one in asked
    ]
    return [one.losses[:, 0] for one in predict(model, questions, progress=progress)]
