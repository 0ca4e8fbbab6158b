"""Forward passes: what a model predicts at chosen places of token sequences, in batches.

Logits are made at those places only, and for a few of them at a time: of a vocabulary of
50,000, those of one row of 500 tokens take 100 MB. Sequences of like length run together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.models.cpu_functions import on_cpu, quick_functions

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]

#: Tokens of one batch at most, padding included, on a processor and on a GPU.
BATCH_TOKENS = {True: 512, False: 8192}
#: Logits in memory at once take at most this much (bytes), likewise.
LOGIT_BYTES = {True: 16 << 20, False: 512 << 20}
#: Tokens on which the parts of a model are compared with the whole.
TRIED_TOKENS = 8
#: The parts are the whole where no logit differs by more (nats).
SAME_LOGIT = 1e-2

#: Models that were tried and are still there, by their place in memory: whether the parts are
#: the whole, and the size of the vocabulary. Other weights change neither.
_tried: dict[int, tuple[weakref.ref[Any], bool, int]] = {}


@dataclass(frozen=True)
class Question:
    """A sequence, and the tokens whose losses are wanted.

    Attributes:
        tokens: int32 (n,), what the model reads.
        targets: int32 (p, k), p at most n: k tokens at each of the last p places.
    """

    tokens: Integers
    targets: Integers


@dataclass(frozen=True)
class Predicted:
    """What a model says at the places of a `Question`.

    Attributes:
        losses: float32 (p, k), of the targets: minus their log-probability, nats.
        ends: float32 (p,), of any of the end tokens, nats.
        greedy: int32 (p,), the likeliest token.
    """

    losses: Floats
    ends: Floats
    greedy: Integers


@dataclass(frozen=True)
class Parts:
    """A model as two functions, so that logits need not be made everywhere.

    Attributes:
        hidden: tokens (batch, n) -> what comes before the head (batch, n, width).
        head: (1, p, width) -> logits (1, p, vocabulary).
        vocab_size: the last size.
    """

    hidden: Callable[[Any], Any]
    head: Callable[[Any], Any]
    vocab_size: int


def predict(
    model: Any,
    questions: Sequence[Question],
    ends: Sequence[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[Predicted]:
    """What the model predicts at every asked place, in the order of the questions.

    Args:
        model: as mlx-lm makes it: it takes tokens (batch, n) and gives logits.
        questions: what is asked of it.
        ends: ids of end tokens; those beyond the vocabulary are never predicted.
        progress: called with the questions done and all of them, batch by batch.

    Raises:
        ValueError: a token is outside the model's vocabulary.
    """
    if not questions:
        return []
    with quick_functions():
        require_known(
            model, max(max(int(one.tokens.max()), int(one.targets.max())) for one in questions)
        )
        parts = split(model, questions[0].tokens[:TRIED_TOKENS])
        known = [one for one in ends if one < parts.vocab_size]
        found: dict[int, Predicted] = {}
        order = sorted(range(len(questions)), key=lambda i: len(questions[i].tokens))
        while len(found) < len(order):
            batch = _batch(order[len(found) :], questions)
            said = _of_batch(parts, [questions[i] for i in batch], known)
            if ends and not known:
                said = [replace(one, ends=np.full_like(one.ends, np.inf)) for one in said]
            found |= dict(zip(batch, said, strict=True))
            if progress is not None:
                progress(len(found), len(order))
    return [found[i] for i in range(len(questions))]


def vocabulary_of(model: Any) -> int:
    """The size of a model's vocabulary."""
    known = _tried.get(id(model))
    if known is not None and known[0]() is model:
        return known[2]
    return int(model(_array(np.zeros((1, 1), np.int32))).shape[-1])


def require_known(model: Any, highest: int) -> None:
    """Refuse a token that the model has no embedding for: MLX reads whatever lies behind them.

    Raises:
        ValueError: the highest id that the model is to read is outside its vocabulary.
    """
    size = vocabulary_of(model)
    if highest >= size:
        raise ValueError(f"token {highest} is outside the vocabulary of {size}")


def split(model: Any, tokens: Integers) -> Parts:
    """The model's body and its head, where both together are the model.

    Some models scale or cap their logits: whether the parts are all there is, is tried on
    `tokens`. Where they are not, the whole model stands for its body.
    """
    body = getattr(model, "model", None)
    head = getattr(model, "lm_head", None)
    if head is None:
        head = getattr(getattr(body, "embed_tokens", None), "as_linear", None)
    known = _tried.get(id(model))
    if known is not None and known[0]() is model:
        _, is_parted, vocab_size = known
    else:
        is_parted, vocab_size = _try_parts(model, body, head, tokens)
    if is_parted and callable(body) and callable(head):
        return Parts(body, head, vocab_size)
    return Parts(model, lambda logits: logits, vocab_size)


def _try_parts(model: Any, body: Any, head: Any, tokens: Integers) -> tuple[bool, int]:
    """Whether the body and the head after it are the model, and the size of its vocabulary."""
    import mlx.core as mx

    inputs = _array(tokens[None])
    whole = model(inputs)
    vocab_size = int(whole.shape[-1])
    is_parted = False
    if callable(body) and callable(head):
        try:
            parted = head(body(inputs))
            if parted.shape == whole.shape:
                off = mx.abs(parted.astype(mx.float32) - whole.astype(mx.float32))
                # NaN in both, as of a broken model, is the same too.
                is_parted = not mx.any(off > SAME_LOGIT).item()
        except (ValueError, TypeError, AttributeError):
            pass
    # Of a broken model it is not known what it would be with other weights.
    if mx.all(mx.isfinite(whole)).item():
        for place in [place for place, (there, *_) in _tried.items() if there() is None]:
            del _tried[place]
        _tried[id(model)] = weakref.ref(model), is_parted, vocab_size
    return is_parted, vocab_size


def _batch(order: Sequence[int], questions: Sequence[Question]) -> list[int]:
    """The longest beginning of `order` that fits into a batch; at least one."""
    limit = BATCH_TOKENS[on_cpu()]
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * len(questions[i].tokens) > limit:
            break
        batch.append(i)
    return batch


def _of_batch(parts: Parts, batch: Sequence[Question], ends: Sequence[int]) -> list[Predicted]:
    import mlx.core as mx

    width = max(len(one.tokens) for one in batch)
    # Padding on the right cannot be seen by a causal model from the left of it.
    inputs = np.zeros((len(batch), width), np.int32)
    places: list[NDArray[np.intp]] = []
    for number, one in enumerate(batch):
        n = len(one.tokens)
        inputs[number, :n] = one.tokens
        places.append(number * width + np.arange(n - len(one.targets), n))
    hidden = parts.hidden(_array(inputs))
    hidden = hidden.reshape(-1, hidden.shape[-1])
    wanted = np.concatenate(places)
    most = max(one.targets.shape[1] for one in batch)
    targets = np.concatenate(
        [np.pad(one.targets, ((0, 0), (0, most - one.targets.shape[1]))) for one in batch]
    )
    size = max(1, LOGIT_BYTES[on_cpu()] // (4 * parts.vocab_size))
    losses = np.empty(targets.shape, np.float32)
    at_end = np.empty(len(wanted), np.float32)
    greedy = np.empty(len(wanted), np.int32)
    for start in range(0, len(wanted), size):
        some = slice(start, start + size)
        logits = parts.head(hidden[_array(wanted[some].astype(np.int32))][None])[0]
        read = _read_with_numpy if on_cpu() else _read
        losses[some], at_end[some], greedy[some] = read(
            logits.astype(mx.float32), targets[some], list(ends) or [0]
        )
    cuts = np.cumsum([len(one.targets) for one in batch])[:-1]
    parted = (np.split(values, cuts) for values in (losses, at_end, greedy))
    return [
        Predicted(loss[:, : one.targets.shape[1]], end, likeliest)
        for one, loss, end, likeliest in zip(batch, *parted, strict=True)
    ]


def _read(
    logits: Any, targets: Integers, ends: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    import mlx.core as mx

    total = mx.logsumexp(logits, axis=-1)
    losses = total[:, None] - mx.take_along_axis(logits, _array(targets), axis=-1)
    end = total - mx.logsumexp(logits[:, mx.array(list(ends))], axis=-1)
    greedy = mx.argmax(logits, axis=-1)
    mx.eval(losses, end, greedy)
    return np.array(losses), np.array(end), np.array(greedy)


def _read_with_numpy(
    logits: Any, targets: Integers, ends: Sequence[int]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The same; see `cpu_functions` for why."""
    values = np.array(logits)
    greedy = values.argmax(-1)
    values -= np.take_along_axis(values, greedy[:, None], -1)
    asked = np.take_along_axis(values, targets, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        at_end = np.log(np.exp(values[:, ends]).sum(-1))
        total = np.log(np.exp(values, out=values).sum(-1))
    return total[:, None] - asked, total - at_end, greedy


def _array(values: NDArray[Any]) -> Any:
    import mlx.core as mx

    return mx.array(values)


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
