"""The gradient of the logits, read: which positions are trained, and on which token.

The gradient of a weighted cross-entropy at one position is weight x (p - one-hot(target)), p
being the softmax of the logits: negative at the target and nowhere else, and zero where the
position does not count. So target and weight can be read off it, whatever the code looked like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.calls import Calls
from mlxdoctor.measure.training_step.phases import Alignment

#: The gradient of logits is analysed in parts of at most so many bytes.
PART_BYTES = 256 << 20
#: A gradient counts as a cross-entropy's where it is off by less than this share of its norm.
HARD = 0.05
#: What mlx-lm pads with, whatever the tokenizer says.
MLX_LM_PAD = 0


def align(
    loss: Callable[[Any], mx.array], model: Any, calls: Calls, tokenizer: Any | None
) -> tuple[Alignment | None, str | None]:
    """Measure the alignment of inputs and targets.

    Args:
        loss: the loss as a function of the model.
        calls: of the forward pass that was made, emptied and filled again here.
        tokenizer: an mlx-lm or Hugging Face tokenizer, for padding, end and prompts.

    Returns:
        The alignment, and None; or None, and why there is none.
    """
    if not calls.logits:
        return None, "the loss never called the model, or it gave no logits of three dimensions"
    if calls.inputs[0] is None:
        return None, "the model was not called with an array of tokens"
    zeros = [mx.zeros(one.shape) for one in calls.logits]

    def of_offsets(offsets: list[mx.array]) -> mx.array:
        calls.clear()
        calls.offsets = offsets
        return loss(model)

    _, gradients = mx.value_and_grad(of_offsets)(zeros)
    mx.eval(gradients, calls.logits)
    calls.offsets = ()
    # Where the model is called more than once (a reference model, two answers), the call
    # that is trained is the one to look at; the first of them, if there are several.
    strengths = [mx.abs(one).max().item() for one in gradients]
    number = next((at for at, one in enumerate(strengths) if one), 0)
    tokens = calls.inputs[number]
    if tokens is None or tokens.shape != gradients[number].shape[:2]:
        return None, "the model's logits do not go with the tokens it was given"
    targets, weights, hard = read(gradients[number], calls.logits[number])
    inputs = np.array(tokens).astype(np.int32)
    pads, ends = _special(tokenizer)
    return (
        Alignment(
            inputs=inputs,
            targets=targets,
            weights=weights,
            hard=hard,
            prompt_lengths=_prompt_lengths(inputs, tokenizer),
            row_lengths=row_lengths(inputs, pads, ends),
            pad_ids=pads,
            end_ids=ends,
        ),
        None,
    )


def read(
    gradient: mx.array, logits: mx.array
) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
    """Targets, weights and the share of hard targets.

    Args:
        gradient: float32 (rows, positions, vocabulary), of the loss.
        logits: of the same shape, any float type.

    Returns:
        int32 (rows, positions), -1 where the gradient is zero; float32 (rows, positions),
        0 there; and the share, 0 to 1, NaN where nothing is trained.
    """
    targets, weights, hard = [], [], []
    rows = max(1, PART_BYTES // max(1, gradient[0].nbytes))
    for start in range(0, gradient.shape[0], rows):
        part = gradient[start : start + rows].astype(mx.float32)
        p = mx.softmax(logits[start : start + rows].astype(mx.float32), axis=-1)
        target = mx.argmin(part, axis=-1)
        trained = (part != 0).any(axis=-1)
        at_target = mx.take_along_axis(part, target[..., None], axis=-1)[..., 0]
        p_target = mx.take_along_axis(p, target[..., None], axis=-1)[..., 0]
        # Of the two ways to the weight, the sum over the others does not cancel where the
        # target is nearly certain.
        others = (part.sum(axis=-1) - at_target) / mx.maximum(1 - p_target, 1e-7)
        onehot = mx.arange(part.shape[-1]) == target[..., None]
        expected = others[..., None] * (p - onehot)
        off = mx.linalg.norm(part - expected, axis=-1)
        size = mx.maximum(mx.linalg.norm(part, axis=-1), 1e-30)
        mx.eval(target, trained, others, off, size)
        targets.append(np.array(mx.where(trained, target.astype(mx.int32), -1)))
        weights.append(np.array(mx.where(trained, others, 0.0)).astype(np.float32))
        hard.append(np.array(mx.where(trained, off / size, mx.array(float("nan")))))
    shares = np.concatenate(hard)
    known = shares[~np.isnan(shares)]
    share = float((known < HARD).mean()) if known.size else float("nan")
    return np.concatenate(targets), np.concatenate(weights), share


def row_lengths(
    inputs: NDArray[np.int32], pads: tuple[int, ...], ends: tuple[int, ...]
) -> NDArray[np.int32]:
    """Tokens before the padding of each row, int32 (rows,).

    Padding is a run of one padding token up to the row's end; the first of a run of end
    tokens is the row's own.
    """
    lengths = np.full(len(inputs), inputs.shape[1], np.int32)
    for at, row in enumerate(inputs):
        last = int(row[-1])
        if last not in pads:
            continue
        other = np.flatnonzero(row != last)
        length = int(other[-1]) + 1 if other.size else 0
        follows_end = length > 0 and int(row[length - 1]) in ends
        if last == MLX_LM_PAD and len(row) - length == 1 and not follows_end:
            # A single one may be the row's own: in many vocabularies it is a letter.
            continue
        lengths[at] = min(length + (last in ends), len(row))
    return lengths


def _special(tokenizer: Any | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding and end tokens."""
    ends = _ids(tokenizer, "eos_token_ids") or _ids(tokenizer, "eos_token_id")
    pads = dict.fromkeys((MLX_LM_PAD, *_ids(tokenizer, "pad_token_id"), *ends))
    return tuple(pads), ends


def _ids(tokenizer: Any | None, name: str) -> tuple[int, ...]:
    value = getattr(tokenizer, name, None)
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(sorted(int(one) for one in value))


def _prompt_lengths(inputs: NDArray[np.int32], tokenizer: Any | None) -> NDArray[np.int32]:
    """Where the last answer begins: after the last of what the template opens answers with."""
    unknown = np.full(len(inputs), -1, np.int32)
    opening = _opening(tokenizer)
    if not opening:
        return unknown
    pattern = np.array(opening, np.int32)
    for at, row in enumerate(inputs):
        if len(row) < len(pattern):
            continue
        windows = np.lib.stride_tricks.sliding_window_view(row, len(pattern))
        found = np.flatnonzero((windows == pattern).all(axis=1))
        if found.size:
            unknown[at] = int(found[-1]) + len(pattern)
    return unknown


def _opening(tokenizer: Any | None) -> list[int]:
    """What the chat template adds when an answer is to follow; empty where there is none."""
    if getattr(tokenizer, "chat_template", None) is None or tokenizer is None:
        return []
    asked = [{"role": "user", "content": "a"}]
    try:
        closed, opened = (
            tokenizer.apply_chat_template(asked, add_generation_prompt=on, return_dict=False)
            for on in (False, True)
        )
    except Exception:  # a user's template may raise anything
        return []
    return list(opened[len(closed) :]) if list(opened[: len(closed)]) == list(closed) else []
