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
from mlxdoctor.safety.quoting import MAX_LINE, quoted

#: What steps are made with where no optimizer is given; mlx-lm's default optimizer.
LEARNING_RATE = 1e-4

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
    losses = [_loss(loss, model)]
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
            except Exception as failure:  # a user's code may raise anything
                error = f"{type(failure).__name__}: {failure}"
                break
            made += 1
            losses.append(_loss(loss, model))
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
        error=error,
    )


def _gradients(loss: Loss, model: nn.Module) -> tuple[dict[str, mx.array], str | None]:
    try:
        _, gradients = nn.value_and_grad(model, lambda: loss(model))()
        mx.eval(gradients)
    except Exception as error:  # a user's code may raise anything
        return {}, f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
    return dict(tree_flatten(gradients)), None


def _own_step(loss: Loss, model: nn.Module, optimizer: Any) -> None:
    _, gradients = nn.value_and_grad(model, lambda: loss(model))()
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), optimizer.state)


def _loss(loss: Loss, model: nn.Module) -> float:
    """The loss with dropout off, so that steps can be compared."""
    was_training = model.training
    model.eval()
    try:
        value: Any = loss(model).item()
    except Exception:  # steps may have broken the model
        value = math.nan
    finally:
        model.train(was_training)
    return float(value)


def _norm(one: mx.array) -> float:
    value: Any = mx.linalg.norm(one.astype(mx.float32).reshape(-1)).item()
    return float(value)


def _distance(old: mx.array, new: mx.array | None) -> float:
    if new is None or new.shape != old.shape:
        return math.nan
    # The same array object was not replaced: nothing to compute.
    return 0.0 if new is old else _norm(new.astype(mx.float32) - old.astype(mx.float32))


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
