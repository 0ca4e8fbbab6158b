"""Real training steps: what gets a gradient, what changes, and what must not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.measure.training_step.phases import ParameterStep, Update
from mlxdoctor.safety.user_failure import UserFailure, failure_of

#: What steps are made with where no optimizer is given; mlx-lm's default optimizer.
LEARNING_RATE = 1e-4

#: What a loss may be given in.
FLOATS = (mx.float32, mx.bfloat16, mx.float16)

Loss = Callable[[Any], mx.array]


def make_steps(
    loss: Loss,
    model: nn.Module,
    optimizer: Any | None,
    step: Callable[[], Any] | None,
    steps: int,
) -> Update:
    """Take gradients, then make steps, and compare every parameter with what it was.

    Args:
        loss: the loss on the batch as a function of the model.
        optimizer: the user's; Adam at `LEARNING_RATE` where None.
        step: one step of the user's own trainer, instead of ours.
        steps: how many to make.
    """
    optimizer = optimizer if optimizer is not None else optim.Adam(LEARNING_RATE)
    names = [name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))]
    before = dict(tree_flatten(nn.Module.parameters(model)))
    gradients, error = _gradients(loss, model)
    first, resolution = _loss(loss, model)
    losses = [first]
    made = 0
    if error is None or step is not None:
        error = None if step is not None else error
        for _ in range(steps):
            try:
                if step is not None:
                    step()
                else:
                    _own_step(loss, model, optimizer)
                mx.eval(model.parameters())
            except Exception as raised:  # a user's code may raise anything
                error = failure_of(raised)
                break
            made += 1
            losses.append(_loss(loss, model)[0])
    after = dict(tree_flatten(nn.Module.parameters(model)))
    trained = set(names)
    return Update(
        steps=made,
        own=step is not None,
        optimizer=type(optimizer).__name__,
        learning_rate=_rate(optimizer),
        parameters=tuple(
            ParameterStep(
                name=name,
                gradient_norm=_norm(gradients[name]) if name in gradients else None,
                norm=_norm(before[name]),
                change=_distance(before[name], after.get(name)),
            )
            for name in names
        ),
        frozen_changed=tuple(
            name
            for name, old in before.items()
            if name not in trained and not _is_same(old, after.get(name))
        ),
        losses=tuple(losses),
        predicted=math.fsum(
            _product(gradients[name], before[name], after.get(name))
            for name in names
            if name in gradients
        ),
        resolution=resolution,
        error=None if error is None else error.sentence,
        frames=() if error is None else error.frames,
    )


def _gradients(loss: Loss, model: nn.Module) -> tuple[dict[str, mx.array], UserFailure | None]:
    try:
        _, gradients = nn.value_and_grad(model, lambda: loss(model))()
        mx.eval(gradients)
    except Exception as error:  # a user's code may raise anything
        return {}, failure_of(error)
    return dict(tree_flatten(gradients)), None


def _own_step(loss: Loss, model: nn.Module, optimizer: Any) -> None:
    _, gradients = nn.value_and_grad(model, lambda: loss(model))()
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)


def _loss(loss: Loss, model: nn.Module) -> tuple[float, float]:
    """The loss with dropout off, so that steps can be compared, and its number format's digits."""
    was_training = model.training
    model.eval()
    try:
        one = loss(model)
        value: Any = one.item()
        resolution = float(mx.finfo(one.dtype).eps) if one.dtype in FLOATS else 0.0
    except Exception:  # steps may have broken the model
        value, resolution = math.nan, 0.0
    finally:
        model.train(was_training)
    return float(value), resolution


def _norm(one: mx.array) -> float:
    value: Any = mx.linalg.norm(one.astype(mx.float32).reshape(-1)).item()
    return float(value)


def _distance(old: mx.array, new: mx.array | None) -> float:
    if new is None or new.shape != old.shape:
        return math.nan
    # The same array object was not replaced: nothing to compute.
    return 0.0 if new is old else _norm(new.astype(mx.float32) - old.astype(mx.float32))


def _product(gradient: mx.array, old: mx.array, new: mx.array | None) -> float:
    """What the gradient says that a change does to the loss, nats."""
    if new is None or new is old or new.shape != old.shape:
        return 0.0
    change = new.astype(mx.float32) - old.astype(mx.float32)
    value: Any = (gradient.astype(mx.float32) * change).sum().item()
    return float(value) if math.isfinite(value) else 0.0


def _is_same(old: mx.array, new: mx.array | None) -> bool:
    if new is old:
        return True
    if new is None or new.shape != old.shape or new.dtype != old.dtype:
        return False
    same: Any = mx.array_equal(old, new, equal_nan=True).item()
    return bool(same)


def _rate(optimizer: Any) -> float | None:
    rate = getattr(optimizer, "learning_rate", None)
    value: Any = rate.item() if isinstance(rate, mx.array) else rate
    return None if value is None else float(value)
