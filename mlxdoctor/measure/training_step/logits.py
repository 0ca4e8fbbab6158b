"""The gradient of the logits, read: which positions are trained, and on which token.

The gradient of a weighted cross-entropy at one position is weight x (p - one-hot(target)), p
being the softmax of the logits: negative at the target and nowhere else, and zero where the
position does not count. So target and weight can be read off it, whatever the code looked like.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from mlxdoctor.evidence.kind import Missing
from mlxdoctor.measure.training_step.calls import Call, OfModel, heard
from mlxdoctor.measure.training_step.values import Alignment

#: The gradient of logits is analysed in parts of at most so many bytes.
PART_BYTES = 256 << 20
#: A gradient counts as a cross-entropy's where it is off by less than this share of its norm.
HARD = 0.05
#: Beyond this probability a target's own gradient is lost in rounding.
CERTAIN = 0.9999
#: Share of the largest logit by which one differs that is another, and not rounded otherwise.
MOVED = 1e-3
#: What mlx-lm pads with, whatever the tokenizer says.
MLX_LM_PAD = 0

Tokens = NDArray[np.int32]


def gradients_of(loss: OfModel, model: Any) -> tuple[tuple[Call, ...], Mapping[str, mx.array]]:
    """Differentiate the loss by what is trainable and by the logits of each call of the model.

    Returns:
        The calls that it made of the model, with the gradient of the logits of each; and trainable
        parameter -> its gradient.
    """
    # Nothing is computed here: only how many logits there are is asked.
    with heard(model) as calls:
        loss(model)
    by = model.trainable_parameters(), [mx.zeros(call.logits.shape) for call in calls]
    if not tree_flatten(by):
        return (), {}

    def value(by: tuple[Any, list[mx.array]]) -> mx.array:
        parameters, offsets = by
        model.update(parameters)
        with heard(model, offsets) as made:
            loss_value: mx.array = loss(model)
        calls[:] = made
        return loss_value

    _, (of_parameters, of_logits) = mx.value_and_grad(value)(by)
    mx.eval(of_parameters, of_logits, [call.logits for call in calls])
    differentiated = zip(calls, of_logits, strict=True)
    made = tuple(replace(call, gradient=gradient) for call, gradient in differentiated)
    return made, dict(tree_flatten(of_parameters))


def is_nonzero(gradient: mx.array) -> bool:
    return bool((gradient != 0).any().item())


def sees_ahead(model: Any, calls: Sequence[Call]) -> float | None:
    """The share of positions before a row's last token whose logits depend on it.

    Returns:
        None where the model gives other logits for the tokens alone, as with a mask that the loss
        hands over, or cannot be called with them.
    """
    call = next((call for call in calls if call.tokens is not None), None)
    if call is None or call.tokens is None or call.tokens.shape != call.logits.shape[:2]:
        return None
    tokens = call.tokens
    other = mx.concatenate([tokens[:, :-1], (tokens[:, -1:] + 1) % call.logits.shape[-1]], axis=1)
    try:
        with heard(model) as asked:
            model(tokens), model(other)
        (before, after) = (each.logits.astype(mx.float32) for each in asked)
        if not mx.allclose(before, call.logits.astype(mx.float32), rtol=MOVED, atol=MOVED).item():
            return None
    except Exception:  # a user's model may take more than tokens
        return None
    off = mx.abs(after - before)[:, :-1].max(axis=-1)
    share: Any = (off > MOVED * mx.abs(before).max()).mean().item()
    return float(share) if tokens.shape[1] > 1 else None


def align(calls: Sequence[Call], tokenizer: Any | None) -> Alignment:
    """Measure the alignment of inputs and targets, in each forward pass that is trained.

    Raises:
        Missing: there are no logits, or no tokens that go with them.
    """
    if not calls:
        raise Missing(
            "the loss never called the model, or got no logits of (rows, positions, vocabulary)"
        )
    fitting = [
        number
        for number, call in enumerate(calls)
        if call.tokens is not None and call.tokens.shape == call.logits.shape[:2]
    ]
    trained = [number for number, call in enumerate(calls) if is_nonzero(call.gradient)]
    # Where nothing is trained, the first call still shows what the model was given.
    numbers = [number for number in fitting if number in trained] or fitting[: not trained]
    if not numbers:
        raise Missing("the model was not called with an array of tokens, one for each position")
    special = SpecialTokens.of(tokenizer)
    given = [np.array(calls[number].tokens).astype(np.int32) for number in numbers]
    reads = [
        read(calls[number].gradient, calls[number].logits, _following(tokens))
        for number, tokens in zip(numbers, given, strict=True)
    ]
    trained_places = sum(int((targets >= 0).sum()) for targets, _, _ in reads)
    hard = sum(count for _, _, count in reads)
    rows = [row for tokens in given for row in tokens]
    return Alignment(
        inputs=_stacked(given, -1),
        targets=_stacked([targets for targets, _, _ in reads], -1),
        weights=_stacked([weights for _, weights, _ in reads], 0.0),
        hard=hard / trained_places if trained_places else math.nan,
        prompt_lengths=np.array([special.prompt_length(row) for row in rows], np.int32),
        row_lengths=np.array([special.row_length(row) for row in rows], np.int32),
        widths=np.array([len(row) for row in rows], np.int32),
        forwards=np.repeat(np.array(numbers, np.int32), [len(tokens) for tokens in given]),
        end_ids=special.ends,
    )


def _following(tokens: Tokens) -> Tokens:
    return np.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=-1)


def _stacked(arrays: list[NDArray[Any]], fill: float) -> NDArray[Any]:
    """The rows of all arrays, filled up to the widest."""
    width = max(array.shape[1] for array in arrays)
    wide = (np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=fill) for x in arrays)
    return np.concatenate(list(wide))


def read(
    gradient: mx.array, logits: mx.array, after: Tokens
) -> tuple[Tokens, NDArray[np.float32], int]:
    """Targets, weights and the number of hard targets.

    Args:
        gradient: float32 (rows, positions, vocabulary), of the loss.
        logits: of the same shape, any float type.
        after: int32 (rows, positions), the next token, which decides where pushing one token
            up and pushing another down are the same.

    Returns:
        int32 (rows, positions), -1 where the gradient is zero; float32 (rows, positions),
        0 there, negative where the target is made less likely; and the number.
    """
    targets, weights, hard = [], [], 0
    rows = max(1, PART_BYTES // max(1, gradient[0].nbytes))
    for start in range(0, gradient.shape[0], rows):
        part = gradient[start : start + rows].astype(mx.float32)
        p = mx.softmax(logits[start : start + rows].astype(mx.float32), axis=-1)
        trained = (part != 0).any(axis=-1)
        up, down = mx.argmin(part, axis=-1), mx.argmax(part, axis=-1)
        weight_up, off_up = _fit(part, p, up)
        weight_down, off_down = _fit(part, p, down)
        next_token = mx.array(after[start : start + rows])
        both = (off_up < HARD) & (off_down < HARD)
        is_next = (down == next_token) & (up != next_token)
        is_down = mx.where(both, is_next, off_down < off_up)
        target = mx.where(trained, mx.where(is_down, down, up).astype(mx.int32), -1)
        weight = mx.where(trained, mx.where(is_down, weight_down, weight_up), 0.0)
        is_hard = mx.where(is_down, off_down, off_up) < HARD
        mx.eval(target, weight, is_hard)
        targets.append(np.array(target))
        weights.append(np.array(weight).astype(np.float32))
        hard += int(np.count_nonzero(is_hard & trained))
    return np.concatenate(targets), np.concatenate(weights), hard


def _fit(part: mx.array, p: mx.array, target: mx.array) -> tuple[mx.array, mx.array]:
    """Weight of a target at each position, and the share of the gradient that it leaves over."""
    at_target = mx.take_along_axis(part, target[..., None], axis=-1)[..., 0]
    p_target = mx.take_along_axis(p, target[..., None], axis=-1)[..., 0]
    # Of the two ways to the weight, the sum over the others does not cancel where the
    # target is nearly certain.
    others = (part.sum(axis=-1) - at_target) / mx.maximum(1 - p_target, 1e-7)
    onehot = mx.arange(part.shape[-1]) == target[..., None]
    expected = others[..., None] * (p - onehot)
    off = mx.linalg.norm(part - expected, axis=-1)
    size = mx.maximum(mx.linalg.norm(part, axis=-1), 1e-30)
    return others, off / size


def pushes(calls: Sequence[Call], alignment: Alignment) -> NDArray[np.float64]:
    """How much each row's own tokens are made more likely, float64 (rows,).

    They are read at the trained positions, whatever else the loss has there: a bonus for entropy,
    say, pushes other tokens. The calls are those of the alignment.
    """
    sums = []
    for number in dict.fromkeys(alignment.forwards.tolist()):
        gradient = calls[number].gradient.astype(mx.float32)
        p = mx.softmax(calls[number].logits.astype(mx.float32), axis=-1)
        rows, width = alignment.forwards == number, gradient.shape[1]
        after = _following(alignment.inputs[rows][:, :width])
        index = mx.array(np.maximum(after, 0))[..., None]
        at_token = mx.take_along_axis(gradient, index, axis=-1)[..., 0]
        p_token = mx.take_along_axis(p, index, axis=-1)[..., 0]
        # A token that is nearly certain has nearly no gradient of its own to read.
        push = mx.where(p_token < CERTAIN, -at_token / mx.maximum(1 - p_token, 1 - CERTAIN), 0.0)
        counts = alignment.trained[rows][:, :width] & (after >= 0)
        sums.append(np.where(counts, np.array(push), 0.0).sum(axis=1, dtype=np.float64))
    return np.concatenate(sums)


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens of a tokenizer that mean something.

    Attributes:
        ends: tokens that end an answer; empty where no tokenizer was given.
        answer: what the chat template adds when an answer is to follow; empty without one.
    """

    pads: tuple[int, ...]
    ends: tuple[int, ...]
    answer: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Any | None) -> Self:
        ends = _ids(tokenizer, "eos_token_ids") or _ids(tokenizer, "eos_token_id")
        pads = (MLX_LM_PAD, *_ids(tokenizer, "pad_token_id"), *ends)
        return cls(pads, ends, _opening(tokenizer))

    def prompt_length(self, row: Tokens) -> int:
        """Where the last answer begins, after the last of what opens one; -1 where unknown."""
        length = len(self.answer)
        if not length or len(row) < length:
            return -1
        windows = np.lib.stride_tricks.sliding_window_view(row, length)
        places = np.flatnonzero((windows == np.array(self.answer)).all(axis=1))
        return int(places[-1]) + length if places.size else -1

    def row_length(self, row: Tokens) -> int:
        """Tokens before the padding of a row, a run of one such token up to the row's end."""
        last = int(row[-1])
        if last not in self.pads:
            return len(row)
        other = np.flatnonzero(row != last)
        length = int(other[-1]) + 1 if other.size else 0
        follows_end = length > 0 and int(row[length - 1]) in self.ends
        if last == MLX_LM_PAD and len(row) - length == 1 and not follows_end:
            # A single one may be the row's own: in many vocabularies it is a letter.
            return len(row)
        # The first of a run of end tokens is the row's own.
        return min(length + (last in self.ends), len(row))


def _ids(tokenizer: Any | None, name: str) -> tuple[int, ...]:
    value = getattr(tokenizer, name, None)
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(sorted(map(int, value)))


def _opening(tokenizer: Any | None) -> tuple[int, ...]:
    """What the chat template adds when an answer is to follow; empty where there is none."""
    if tokenizer is None or getattr(tokenizer, "chat_template", None) is None:
        return ()
    message = [{"role": "user", "content": "a"}]
    try:
        template = partial(tokenizer.apply_chat_template, message, return_dict=False)
        closed, opened = (list(template(add_generation_prompt=begins)) for begins in (False, True))
    except Exception:  # a user's template may raise anything
        return ()
    return tuple(opened[len(closed) :]) if opened[: len(closed)] == closed else ()
