"""The loss of a forward pass, and real steps: what gets a gradient, and what changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.measure.training_step.calls import Calls, OfModel
from mlxdoctor.measure.training_step.values import Forward, ParameterStep, Update
from mlxdoctor.safety.user_failure import failure_of

#: What steps are made with where no optimizer is given; mlx-lm's default optimizer.
LEARNING_RATE = 1e-4
#: What a loss may be given in.
_FLOATS = (mx.float32, mx.bfloat16, mx.float16)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While the context lasts, dropout is off."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def uncompiled() -> Iterator[None]:
    """A compiled loss would keep the zeros of its first call as constants."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def forward_pass(loss: OfModel, model: nn.Module, calls: Calls) -> Forward:
    """The loss; leaves `calls` filled by its pass."""
    value: Any = loss(model).item()
    logits = calls.logits[0] if calls.logits else None
    finite: Any = all(mx.isfinite(each).all().item() for each in calls.logits)
    return Forward(
        loss=float(value),
        uniform=None if logits is None else math.log(logits.shape[-1]),
        dtype=None if logits is None else str(logits.dtype).rpartition(".")[2],
        finite_logits=bool(finite),
    )


def make_steps(
    loss: OfModel, own: OfModel | None, model: nn.Module, optimizer: Any | None, steps: int
) -> Update:
    """Take gradients, then make steps, and compare every parameter with what it was.

    Args:
        own: one step of the user's own trainer, instead of ours.
        optimizer: the user's; Adam at `LEARNING_RATE` where None.
        steps: how many to make.
    """
    optimizer = optimizer if optimizer is not None else optim.Adam(LEARNING_RATE)
    names = [name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))]
    before = dict(tree_flatten(nn.Module.parameters(model)))
    gradients: dict[str, mx.array] = {}
    error = None
    try:
        _, tree = nn.value_and_grad(model, lambda: loss(model))()
        mx.eval(tree)
        gradients = dict(tree_flatten(tree))
    except Exception as raised:  # a user's code may raise anything
        error = failure_of(raised)
    first, resolution = _loss(loss, model)
    losses = [first]
    if error is None or own is not None:
        make = partial(own, model) if own is not None else partial(_step, loss, optimizer, model)
        try:
            for _ in range(steps):
                make()
                mx.eval(model.parameters())
                losses.append(_loss(loss, model)[0])
        except Exception as raised:  # a user's code may raise anything
            error = failure_of(raised)
    after = dict(tree_flatten(nn.Module.parameters(model)))
    rate = getattr(optimizer, "learning_rate", None)
    changes = {name: _change(before[name], after.get(name)) for name in names}
    return Update(
        steps=len(losses) - 1,
        own=own is not None,
        optimizer=type(optimizer).__name__,
        learning_rate=None if rate is None else float(rate),
        parameters=tuple(
            ParameterStep(
                name=name,
                gradient_norm=_norm(gradients[name]) if name in gradients else None,
                norm=_norm(before[name]),
                change=_norm(changes[name]),
            )
            for name in names
        ),
        frozen_changed=tuple(
            name
            for name, old in before.items()
            if name not in changes
            and (new := after.get(name)) is not old
            and (
                new is None
                or new.dtype != old.dtype
                or not mx.array_equal(old, new, equal_nan=True).item()
            )
        ),
        losses=tuple(losses),
        predicted=math.fsum(_product(each, changes[name]) for name, each in gradients.items()),
        resolution=resolution,
        error=None if error is None else error.sentence,
        frames=() if error is None else error.frames,
    )


def _step(loss: OfModel, optimizer: Any, model: nn.Module) -> None:
    _, gradients = nn.value_and_grad(model, lambda: loss(model))()
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)


def _loss(loss: OfModel, model: nn.Module) -> tuple[float, float]:
    """The loss with dropout off, so that steps can be compared, and its number format's digits."""
    try:
        with evaluating(model):
            value = loss(model)
            resolution = float(mx.finfo(value.dtype).eps) if value.dtype in _FLOATS else 0.0
            return float(value.item()), resolution
    except Exception:  # steps may have broken the model
        return math.nan, 0.0


def _norm(array: mx.array | None) -> float:
    """L2 norm; 0 for what did not change."""
    if array is None:
        return 0.0
    value: Any = mx.linalg.norm(array.astype(mx.float32).reshape(-1)).item()
    return float(value)


def _change(old: mx.array, new: mx.array | None) -> mx.array | None:
    """What steps changed, float32; None where the array was not replaced, NaN where it is lost."""
    if new is old:
        return None
    if new is None or new.shape != old.shape:
        return mx.array(math.nan)
    return new.astype(mx.float32) - old.astype(mx.float32)


def _product(gradient: mx.array, change: mx.array | None) -> float:
    """What the gradient says that a change does to the loss, nats."""
    if change is None:
        return 0.0
    value: Any = (gradient.astype(mx.float32) * change).sum().item()
    return float(value) if math.isfinite(value) else 0.0
