"""The gradient of the logits, read: which positions are trained, and on which token.

The gradient of a weighted cross-entropy at one position is weight x (p - one-hot(target)), p
being the softmax of the logits: negative at the target and nowhere else, and zero where the
position does not count. So target and weight can be read off it, whatever the code looked like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.calls import Calls
from mlxdoctor.measure.training_step.phases import Alignment
from mlxdoctor.measure.training_step.special_tokens import Special, row_lengths

#: The gradient of logits is analysed in parts of at most so many bytes.
PART_BYTES = 256 << 20
#: A gradient counts as a cross-entropy's where it is off by less than this share of its norm.
HARD = 0.05
#: Beyond this probability a target's own gradient is lost in rounding.
CERTAIN = 0.9999


@dataclass(frozen=True)
class Passes:
    """One evaluation of the loss: what it asked of the model, and the gradient of the answers.

    Attributes:
        inputs: the tokens of each call; None where it had none.
        logits: what each call gave.
        gradients: of the loss with respect to those.
    """

    inputs: tuple[mx.array | None, ...]
    logits: tuple[mx.array, ...]
    gradients: tuple[mx.array, ...]

    @property
    def readable(self) -> list[int]:
        """Numbers of the calls that have a gradient, and tokens that go with it."""
        return [
            number
            for number, (tokens, gradient) in enumerate(
                zip(self.inputs, self.gradients, strict=True)
            )
            if tokens is not None and tokens.shape == gradient.shape[:2] and _any(gradient)
        ]


def passes_of(loss: Callable[[Any], mx.array], model: Any, calls: Calls) -> Passes:
    """Evaluate the loss, with the gradient of the logits of each of its calls.

    Args:
        loss: the loss as a function of the model.
        calls: of a forward pass that was made, emptied and filled again here.
    """
    zeros = [mx.zeros(one.shape) for one in calls.logits]
    if not zeros:
        return Passes((), (), ())

    def of_offsets(offsets: list[mx.array]) -> mx.array:
        calls.clear()
        calls.offsets = offsets
        return loss(model)

    try:
        _, gradients = mx.value_and_grad(of_offsets)(zeros)
        mx.eval(gradients, calls.logits)
    finally:
        calls.offsets = ()
    return Passes(tuple(calls.inputs), tuple(calls.logits), tuple(gradients))


def align(passes: Passes, tokenizer: Any | None) -> tuple[Alignment | None, str | None]:
    """Measure the alignment of inputs and targets, in each forward pass that is trained.

    Args:
        tokenizer: an mlx-lm or Hugging Face tokenizer, for padding, end and prompts.

    Returns:
        The alignment, and None; or None, and why there is none.
    """
    if not passes.logits:
        return None, "the loss never called the model, or it gave no logits of three dimensions"
    if all(one is None for one in passes.inputs):
        return None, "the model was not called with an array of tokens"
    numbers = passes.readable
    if not numbers:
        if any(map(_any, passes.gradients)):
            return None, "the model's logits do not go with the tokens it was given"
        numbers = [at for at, one in enumerate(passes.inputs) if one is not None][:1]
        tokens = passes.inputs[numbers[0]]
        if tokens is None or tokens.shape != passes.gradients[numbers[0]].shape[:2]:
            return None, "the model's logits do not go with the tokens it was given"
    special = Special.of(tokenizer)
    parts = [_of_call(passes, number, special) for number in numbers]
    width = max(one.inputs.shape[1] for one in parts)
    shares = [one.hard * int(one.trained.sum()) for one in parts if one.trained.any()]
    trained = sum(int(one.trained.sum()) for one in parts)
    return (
        Alignment(
            inputs=_stacked([one.inputs for one in parts], width, -1),
            targets=_stacked([one.targets for one in parts], width, -1),
            weights=_stacked([one.weights for one in parts], width, 0.0),
            hard=sum(shares) / trained if trained else float("nan"),
            prompt_lengths=np.concatenate([one.prompt_lengths for one in parts]),
            row_lengths=np.concatenate([one.row_lengths for one in parts]),
            widths=np.concatenate([one.widths for one in parts]),
            forwards=np.concatenate([one.forwards for one in parts]),
            pad_ids=special.pads,
            end_ids=special.ends,
            starts=tuple(start for one in parts for start in one.starts),
        ),
        None,
    )


def _of_call(passes: Passes, number: int, special: Special) -> Alignment:
    tokens = passes.inputs[number]
    inputs = np.array(tokens).astype(np.int32)
    gradient, logits = passes.gradients[number], passes.logits[number]
    targets, weights, hard = read(gradient, logits, following(inputs))
    lengths = row_lengths(inputs, special.pads, special.ends)
    return Alignment(
        inputs=inputs,
        targets=targets,
        weights=weights,
        hard=hard,
        prompt_lengths=special.prompt_lengths(inputs),
        row_lengths=lengths,
        widths=np.full(len(inputs), inputs.shape[1], np.int32),
        forwards=np.full(len(inputs), number, np.int32),
        starts=tuple(
            special.document_starts(row, int(length))
            for row, length in zip(inputs, lengths, strict=True)
        ),
    )


def following(inputs: NDArray[np.int32]) -> NDArray[np.int32]:
    """The token after each position, int32 (rows, positions); -1 at the last one."""
    return np.concatenate([inputs[:, 1:], np.full((len(inputs), 1), -1, np.int32)], axis=1)


def _stacked(arrays: list[NDArray[Any]], width: int, fill: float) -> NDArray[Any]:
    return np.concatenate(
        [np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=fill) for one in arrays]
    )


def _any(gradient: mx.array) -> bool:
    return bool((gradient != 0).any().item())


def read(
    gradient: mx.array, logits: mx.array, after: NDArray[np.int32] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
    """Targets, weights and the share of hard targets.

    Args:
        gradient: float32 (rows, positions, vocabulary), of the loss.
        logits: of the same shape, any float type.
        after: int32 (rows, positions), the next token, which decides where pushing one token
            up and pushing another down are the same.

    Returns:
        int32 (rows, positions), -1 where the gradient is zero; float32 (rows, positions),
        0 there, negative where the target is made less likely; and the share, 0 to 1, NaN
        where nothing is trained.
    """
    targets, weights, hard = [], [], []
    rows = max(1, PART_BYTES // max(1, gradient[0].nbytes))
    for start in range(0, gradient.shape[0], rows):
        part = gradient[start : start + rows].astype(mx.float32)
        p = mx.softmax(logits[start : start + rows].astype(mx.float32), axis=-1)
        trained = (part != 0).any(axis=-1)
        up, down = mx.argmin(part, axis=-1), mx.argmax(part, axis=-1)
        weight_up, off_up = _fit(part, p, up)
        weight_down, off_down = _fit(part, p, down)
        is_down = off_down < off_up
        if after is not None:
            next_one = mx.array(after[start : start + rows])
            both = (off_up < HARD) & (off_down < HARD)
            is_down = mx.where(both, (down == next_one) & (up != next_one), is_down)
        target = mx.where(is_down, down, up)
        weight, off = (
            mx.where(is_down, one, other)
            for one, other in ((weight_down, weight_up), (off_down, off_up))
        )
        mx.eval(target, trained, weight, off)
        targets.append(np.array(mx.where(trained, target.astype(mx.int32), -1)))
        weights.append(np.array(mx.where(trained, weight, 0.0)).astype(np.float32))
        hard.append(np.array(mx.where(trained, off, mx.array(float("nan")))))
    shares = np.concatenate(hard)
    known = shares[~np.isnan(shares)]
    share = float((known < HARD).mean()) if known.size else float("nan")
    return np.concatenate(targets), np.concatenate(weights), share


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


def pushes(passes: Passes, alignment: Alignment, targets: NDArray[np.int32]) -> NDArray[np.float64]:
    """How much each row's targets are made more likely, float64 (rows,).

    Args:
        passes: with the same forward passes as those the alignment was read from.
        targets: int32 (rows, positions), -1 where a position does not count.
    """
    found = []
    for number in dict.fromkeys(alignment.forwards.tolist()):
        rows = alignment.forwards == number
        width = int(alignment.widths[rows][0])
        wanted = targets[rows][:, :width]
        index = mx.array(np.maximum(wanted, 0))[..., None]
        gradient = passes.gradients[number].astype(mx.float32)
        p = mx.softmax(passes.logits[number].astype(mx.float32), axis=-1)
        at = mx.take_along_axis(gradient, index, axis=-1)[..., 0]
        p_at = mx.take_along_axis(p, index, axis=-1)[..., 0]
        # A target that is nearly certain has nearly no gradient of its own to read.
        push = mx.where(p_at < CERTAIN, -at / mx.maximum(1 - p_at, 1 - CERTAIN), 0.0)
        found.append(np.where(wanted >= 0, np.array(push), 0.0).sum(axis=1, dtype=np.float64))
    return np.concatenate(found)
