"""The loss, and those that trainers compute in its place: for readings and for experiments.

A loss is a plain function `(model, tokens, spans) -> (mean, supervised)`, as mlx-lm's
`default_loss`: `tokens` int32 (rows, width); `spans` int32 (rows, 2), the first supervised position
and the length of each row; `mean` float32 (), nats a token; `supervised` int32 ().
"""

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxdoctor.twin.attach import call_through
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.parts import LossFunction

#: (model, inputs (rows, width - 1)) -> logits (rows, width - 1, vocabulary).
Call = Callable[[Any, mx.array], mx.array]


def exact_mask(spans: mx.array, width: int) -> mx.array:
    """Which targets are supervised: those of the row's own tokens from its first position.

    Args:
        spans: int32 (rows, 2), first supervised position and length.
        width: columns of the batch.

    Returns:
        bool (rows, width - 1); column j stands for the target at position j + 1.
    """
    positions = mx.arange(1, width)
    return (positions >= spans[:, :1]) & (positions < spans[:, 1:])


def token_losses(model: Any, tokens: mx.array) -> mx.array:
    """The loss of predicting each token from those before it: (rows, width - 1), nats."""
    losses: mx.array = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    return losses


def mean_over(losses: mx.array, mask: mx.array) -> tuple[mx.array, mx.array]:
    """Mean of the losses where the mask is true, 0 where it nowhere is; how many they are."""
    supervised = mask.sum()
    # A select rather than a product: infinity times zero would be NaN.
    total = mx.where(mask, losses.astype(mx.float32), 0.0).sum()
    return total / mx.maximum(supervised, 1), supervised


def exact_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """Mean over the supervised tokens; 0 where there are none."""
    return mean_over(token_losses(model, tokens), exact_mask(spans, tokens.shape[1]))


def losses_of(
    model: Any, batches: Iterable[Batch], loss: LossFunction
) -> tuple[list[float], list[float]]:
    """Of each batch the summed loss in nats and the supervised tokens, dropout off."""
    model.eval()
    sums, counts = [], []
    for batch in batches:
        mean, count = loss(model, mx.array(batch.tokens), mx.array(batch.spans))
        mx.eval(mean, count)
        counts.append(scalar(count))
        # Without a token the mean is 0/0, and adds nothing.
        sums.append(scalar(mean) * counts[-1] if counts[-1] else 0.0)
    return sums, counts


def evaluate(model: Any, batches: Iterable[Batch], loss: LossFunction) -> float:
    """The loss in nats a supervised token; NaN where there is none. Dropout is left off."""
    sums, counts = losses_of(model, batches, loss)
    return sum(sums) / sum(counts) if sum(counts) else math.nan


def scalar(array: mx.array) -> float:
    """The number in a scalar array, evaluated."""
    value: Any = array.item()
    return float(value)


@cache
def shifted_loss(shift: int) -> LossFunction:
    """A loss whose targets are the tokens `shift` places after the inputs; 1 is right."""

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        width = tokens.shape[1]
        inputs = tokens[:, : width - max(shift, 1)]
        targets = tokens[:, shift : shift + inputs.shape[1]]
        positions = mx.arange(shift, shift + inputs.shape[1])
        mask = (positions >= mx.maximum(spans[:, :1], shift)) & (positions < spans[:, 1:])
        losses = nn.losses.cross_entropy(model(inputs), targets)
        return mean_over(losses, mask)

    return loss


@cache
def loss_without(token: int) -> LossFunction:
    """A loss in which this token is no target, wherever it stands."""

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        mask = exact_mask(spans, tokens.shape[1]) & (tokens[:, 1:] != token)
        return mean_over(token_losses(model, tokens), mask)

    return loss


#: Which targets count: (positions (width - 1,), first supervised and length (rows, 1)) -> bool.
Mask = Callable[[mx.array, mx.array, mx.array], mx.array]


def _over(mask: Mask) -> LossFunction:
    """The loss of the targets that a mask chooses."""

    def loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        chosen = mask(mx.arange(1, tokens.shape[1]), spans[:, :1], spans[:, 1:])
        return mean_over(token_losses(model, tokens), chosen)

    return loss


#: The loss of the first supervised token of each row alone.
first_target_loss = _over(lambda at, first, end: (at == mx.maximum(first, 1)) & (at < end))
#: The loss of what stands before the first supervised token of each row.
prompt_loss = _over(lambda at, first, _: at < first)
#: The loss of every place from the first supervised one to the end of the batch.
whole_batch_loss = _over(lambda at, first, _: at >= first)


def summed_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """The sum over the targets of a batch; a mean over batches counts each alike."""
    mean, count = exact_loss(model, tokens, spans)
    return mean * count, mx.array(1)


def batch_mean_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """The mean of a batch, which a mean over batches counts like any other."""
    return exact_loss(model, tokens, spans)[0], mx.array(1)


def row_mean_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """The mean over rows of each row's mean."""
    mask = exact_mask(spans, tokens.shape[1])
    losses = mx.where(mask, token_losses(model, tokens).astype(mx.float32), 0.0)
    counts = mask.sum(axis=1)
    return mean_over(losses.sum(axis=1) / mx.maximum(counts, 1), counts > 0)


def smoothed_loss(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
    """The loss with label smoothing of 0.1 (Szegedy et al. 2016), which is what most set."""
    losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], label_smoothing=0.1)
    return mean_over(losses, exact_mask(spans, tokens.shape[1]))


@cache
def loss_through(loss: LossFunction, call: Call) -> LossFunction:
    """The loss of logits that `call` gives in the model's place."""

    def changed(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        return loss(lambda inputs: call(model, inputs), tokens, spans)

    return changed


@cache
def loss_of_neighbours(loss: LossFunction) -> LossFunction:
    """The loss of each row's inputs with the targets of the next row of the batch."""

    def changed(model: Any, tokens: mx.array, spans: mx.array) -> tuple[mx.array, mx.array]:
        given = mx.concatenate([tokens[1:], tokens[:1]], axis=0)
        return loss(lambda _: model(given[:, :-1]), tokens, spans)

    return changed


def probabilities(model: Any, inputs: mx.array) -> mx.array:
    """The model's probabilities, where logits belong."""
    return mx.softmax(model(inputs), axis=-1)


def without_causal_mask(model: Any, inputs: mx.array) -> mx.array:
    """The model's logits where every place sees every other."""
    modules = [layer.self_attn for layer in model.layers if hasattr(layer, "self_attn")]
    kinds = [type(module) for module in modules]
    try:
        for module in modules:
            call_through(module, _unmasked)
        logits: mx.array = model(inputs)
    finally:
        for module, kind in zip(modules, kinds, strict=True):
            module.__class__ = kind
    return logits


def _unmasked(call: Callable[..., Any], inputs: mx.array, *_: Any, **named: Any) -> Any:
    return call(inputs, **{**named, "mask": None})
