"""How likely a model finds one text after another: the loss of each token of a continuation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.measure.row_losses import Floats

#: Logits of one batch take at most this much memory (bytes).
MAX_LOGIT_BYTES = 256 << 20


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
    if not asked:
        return []
    vocabulary = _vocabulary(model, asked[0])
    highest = max(int(one.tokens.max()) for one in asked)
    if highest >= vocabulary:
        raise ValueError(f"token {highest} is outside the vocabulary of {vocabulary}")
    order = sorted(range(len(asked)), key=lambda at: len(asked[at].tokens))
    found: dict[int, Floats] = {}
    while len(found) < len(order):
        batch = _batch(order[len(found) :], asked, vocabulary)
        losses = _forward(model, [asked[at] for at in batch])
        found |= dict(zip(batch, losses, strict=True))
        if progress is not None:
            progress(len(found), len(order))
    return [found[at] for at in range(len(asked))]


def _vocabulary(model: Any, first: Continuation) -> int:
    import mlx.core as mx

    return int(model(mx.array(first.tokens[None, :1])).shape[-1])


def _batch(order: Sequence[int], asked: Sequence[Continuation], vocabulary: int) -> list[int]:
    count = 1
    while count < len(order):
        width = len(asked[order[count]].tokens)
        if (count + 1) * width * vocabulary * 4 > MAX_LOGIT_BYTES:
            break
        count += 1
    return list(order[:count])


def _forward(model: Any, asked: Sequence[Continuation]) -> list[Floats]:
    import mlx.core as mx

    width = max(len(one.tokens) for one in asked)
    # Padding on the right cannot be seen by a causal model from the left of it.
    tokens = np.zeros((len(asked), width), np.int32)
    for line, one in zip(tokens, asked, strict=True):
        line[: len(one.tokens)] = one.tokens
    first = min(one.start for one in asked) - 1
    logits = model(mx.array(tokens[:, :-1]))[:, first:].astype(mx.float32)
    targets = mx.array(tokens[:, first + 1 :])[..., None]
    losses = mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, targets, axis=-1)[..., 0]
    mx.eval(losses)
    values = np.array(losses)
    return [
        values[at, one.start - 1 - first : len(one.tokens) - 1 - first]
        for at, one in enumerate(asked)
    ]
