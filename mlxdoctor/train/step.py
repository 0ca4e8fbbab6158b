"""One training step, compiled: loss, gradient, accumulation, clipping, guard, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from mlxdoctor.train.masked_loss import LossFunction
from mlxdoctor.train.settings import Extras

#: Elements above which a gradient is not copied for the sake of fewer kernels.
STACKED = 2**20


class Accumulated(NamedTuple):
    """Batches since the last update: the weighted sum of gradients, and of the weights."""

    gradient: Any
    weight: mx.array


class StepOutput(NamedTuple):
    """What a step gives, all lazy scalars but `accumulated` and `module_norms`.

    Attributes:
        loss: the batch's, over all processes.
        supervised: its supervised tokens, over all processes.
        grad_norm: of the update, before clipping; 0 without an update.
        sound: whether loss and gradient were finite; True where there is no guard.
        accumulated: to be given to the next step; None after an update.
        module_norms: module -> norm; empty without an update or where not asked for.
    """

    loss: mx.array
    supervised: mx.array
    grad_norm: mx.array
    sound: mx.array
    accumulated: Accumulated | None
    module_norms: Mapping[str, mx.array]


Step = Callable[[mx.array, mx.array, Accumulated | None, bool], StepOutput]


def compile_step(
    model: Any, optimizer: Any, loss: LossFunction, extras: Extras, world: int = 1
) -> Step:
    """Compile the step of a model whose trainable parameters are final.

    Args:
        optimizer: initialised with the model's trainable parameters.
        loss: see `mlxdoctor.train.masked_loss`.
        extras: exact weighs each batch by its supervised tokens, parity all alike; a
            limit of skipped batches leaves out those that are not finite.
        world: processes that share each batch.

    Returns:
        `(tokens, spans, accumulated, is_update) -> StepOutput`. Nothing is evaluated:
        evaluate the model, the optimizer and the output together, once a step.
    """
    value_and_grad = nn.value_and_grad(model, loss)
    state = [model.state, optimizer.state, mx.random.state]
    by_tokens, guarded = extras.is_exact, extras.skip_limit is not None

    def step(tokens: mx.array, spans: mx.array, before: Any, is_update: bool) -> StepOutput:
        # Named tuples come out of a compiled function as plain ones.
        accumulated = None if before is None else Accumulated(*before)
        (value, supervised), gradient = value_and_grad(model, tokens, spans)
        weight = supervised.astype(mx.float32) if by_tokens else mx.array(1.0)
        value, supervised, total = _over_processes(value, supervised, weight, world)
        sound = mx.array(True)
        is_alone = accumulated is None and is_update and world == 1
        if not is_alone:
            if guarded:
                sound = _finite_everywhere(value, gradient, world)
            if by_tokens:
                # In float32, whatever the parameters are: half precision cannot count tokens.
                gradient = tree_map(lambda one: one.astype(mx.float32) * weight, gradient)
            if guarded:
                gradient = tree_map(lambda one: mx.where(sound, one, mx.zeros_like(one)), gradient)
                weight = mx.where(sound, weight, 0.0)
            if accumulated is not None:
                gradient = tree_map(lambda one, last: one + last, gradient, accumulated.gradient)
                weight = weight + accumulated.weight
        if not is_update:
            output = Accumulated(gradient, weight)
            return StepOutput(value, supervised, mx.array(0.0), sound, output, {})
        if not is_alone:
            gradient, total = _mean(gradient, weight, world)
            gradient = tree_map(_like, gradient, model.trainable_parameters())
        norm = mx.sqrt(square_norm(gradient))
        each = module_norms(gradient) if extras.module_norms else {}
        if extras.grad_clip is not None:
            factor = mx.minimum(1.0, extras.grad_clip / (norm + 1e-6))
            gradient = tree_map(lambda one: _like(one * factor, one), gradient)
        if guarded:
            fit = mx.isfinite(value if is_alone else total) & mx.isfinite(norm) & (total > 0)
            sound = sound & fit if is_alone else sound & mx.isfinite(norm)
            _update_where(fit, model, optimizer, gradient)
        else:
            optimizer.update(model, gradient)
        return StepOutput(value, supervised, norm, sound, None, each)

    compiled = mx.compile(step, inputs=state, outputs=state)
    return lambda *given: StepOutput(*compiled(*given))


def square_norm(gradient: Any) -> mx.array:
    """The sum of squares of all gradients, float32 ().

    An adapter has hundreds of small tensors of a few shapes. On a GPU it is the number of
    kernels that costs: those of one shape are stacked, which takes one kernel a tensor
    where squaring and adding up takes two or three.
    """
    alike: dict[Any, list[mx.array]] = {}
    for name, one in tree_flatten(gradient):
        key = (one.shape, one.dtype) if one.size <= STACKED else name
        alike.setdefault(key, []).append(one)
    sums = [
        (mx.stack(same) if len(same) > 1 else same[0]).astype(mx.float32).square().sum()
        for same in alike.values()
    ]
    return sum(sums, start=mx.array(0.0))


def module_norms(gradient: Any) -> dict[str, mx.array]:
    """Module name -> the L2 norm of its parameters' gradients, float32 ()."""
    alike: dict[str, list[mx.array]] = {}
    for name, one in tree_flatten(gradient):
        alike.setdefault(name.rpartition(".")[0], []).append(one)
    squares = {
        name: [one.astype(mx.float32).square().sum() for one in same]
        for name, same in alike.items()
    }
    return {name: mx.sqrt(sum(ones[1:], start=ones[0])) for name, ones in squares.items()}


def _over_processes(
    value: mx.array, supervised: mx.array, weight: mx.array, world: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Loss and tokens of the whole batch, and its total weight."""
    if world == 1:
        return value, supervised, weight
    sums = mx.distributed.all_sum(mx.stack([value * weight, weight, supervised.astype(mx.float32)]))
    return sums[0] / mx.maximum(sums[1], 1.0), sums[2].astype(mx.int32), sums[1]


def _finite_everywhere(value: mx.array, gradient: Any, world: int) -> mx.array:
    broken = mx.logical_not(mx.isfinite(value + square_norm(gradient))).astype(mx.float32)
    return (broken if world == 1 else mx.distributed.all_sum(broken)) == 0


def _mean(gradient: Any, weight: mx.array, world: int) -> tuple[Any, mx.array]:
    """The weighted mean over batches and processes, and its total weight."""
    total = weight
    if world > 1:
        total = mx.distributed.all_sum(weight)
        # MLX averages: times the number of processes that is the sum.
        gradient = tree_map(lambda one: one * world, nn.average_gradients(gradient))
    divisor = mx.maximum(total, 1.0)
    return tree_map(lambda one: one / divisor, gradient), total


def _like(one: mx.array, other: mx.array) -> mx.array:
    return one.astype(other.dtype)


def _update_where(fit: mx.array, model: Any, optimizer: Any, gradient: Any) -> None:
    """Update model and optimizer, or leave both as they are, without evaluating `fit`."""

    def choose(new: mx.array, old: mx.array) -> mx.array:
        return mx.where(fit, new, old)

    parameters = model.trainable_parameters()
    # A copy of the containers: the optimizer changes its own in place.
    before = tree_map(lambda one: one, optimizer.state)
    updated = optimizer.apply_gradients(gradient, parameters)
    model.update(tree_map(choose, updated, parameters))
    optimizer.state.update(tree_map(choose, optimizer.state, before))
