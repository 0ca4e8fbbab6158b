"""The loss of a forward pass, and real steps: what gets a gradient, and what changes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.evidence.kind import Missing
from mlxdoctor.measure.training_step.calls import OfModel, as_called, bound, heard, uncompiled
from mlxdoctor.measure.training_step.shares import MOST_CALLS, shares_of
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.measure.training_step.values import Forward, ParameterStep, Update
from mlxdoctor.safety.user_failure import UserFailure, failure_of

#: What steps are made with where no optimizer is given; mlx-lm's default optimizer.
LEARNING_RATE = 1e-4
#: What a loss may be given in.
_FLOATS = (mx.float32, mx.bfloat16, mx.float16)
_HALVES = (mx.bfloat16, mx.float16)
#: What a layer keeps of its batches, without a gradient.
_STATISTICS = ("running_mean", "running_var")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """While the context lasts, dropout is off."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def forward_pass(loss: OfModel, model: nn.Module) -> Forward:
    with heard(model) as calls:
        value = loss(model)
    logits = calls[0].logits if calls else None
    finite: Any = all(mx.isfinite(call.logits).all().item() for call in calls)
    return Forward(
        loss=float(value.item()),
        uniform=None if logits is None else math.log(logits.shape[-1]),
        dtype=None if logits is None else str(logits.dtype).rpartition(".")[2],
        finite_logits=bool(finite),
        resolution=float(mx.finfo(value.dtype).eps) if value.dtype in _FLOATS else 0.0,
    )


def make_steps(
    trainer: Trainer,
    steps: int,
    first: float,
    gradients: Mapping[str, mx.array],
    failure: UserFailure | None,
) -> Update:
    """Make steps, and compare every parameter with what it was.

    The trainer's own step, or the loss with its optimizer; Adam where it has neither.

    Args:
        first: the loss before the steps.
        failure: why the gradients could not be taken: only a step of the trainer's own is made.
    """
    model, loss = trainer.model, as_called(trainer.loss_fn, trainer.batch)
    optimizer = optim.Adam(LEARNING_RATE) if trainer.optimizer is None else trainer.optimizer
    own = None if trainer.step is None else bound(trainer.step, trainer.batch)
    names = [name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))]
    before = dict(tree_flatten(nn.Module.parameters(model)))
    losses, calls, shares = [first], 1, tuple[float, ...]()
    unshared = "no step of your own was named"
    if own is not None:
        try:
            with evaluating(model):
                calls, shares = shares_of(trainer)
        except Missing as missing:
            unshared = str(missing)
        except Exception as error:  # a user's code may raise anything, given one row over and over
            unshared = f"with one row in the place of all it fails ({failure_of(error).what})"
    if failure is None or own is not None:
        try:
            # An update may take more calls of an own step than are asked for.
            while len(losses) <= steps or (
                own is not None and len(losses) <= MOST_CALLS and _is_still(model, before, names)
            ):
                if own is not None:
                    own(model)
                else:
                    optimizer.update(model, _gradient(loss, model))
                mx.eval(model.parameters(), optimizer.state)
                losses.append(_loss(loss, model))
        except Exception as error:  # a user's code may raise anything
            failure = failure_of(error)
    after = dict(tree_flatten(nn.Module.parameters(model)))
    later = {} if failure is not None else _later(loss, model)
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
                later_norm=later.get(name),
                norm=_norm(before[name]),
                is_half=before[name].dtype in _HALVES,
                change=_norm(changes[name]),
            )
            for name in names
        ),
        frozen_changed=tuple(
            name
            for name, old in before.items()
            if name not in changes
            and name.rpartition(".")[2] not in _STATISTICS
            and not _is_same(old, after.get(name))
        ),
        losses=tuple(losses),
        predicted=math.fsum(_product(each, changes[name]) for name, each in gradients.items()),
        calls=calls,
        shares=shares,
        unshared=unshared,
        error=None if failure is None else failure.sentence,
    )


def _is_still(model: nn.Module, before: Mapping[str, mx.array], names: Sequence[str]) -> bool:
    now = dict(tree_flatten(nn.Module.parameters(model)))
    return bool(names) and all(_is_same(before[name], now.get(name)) for name in names)


def _loss(loss: OfModel, model: nn.Module) -> float:
    """The loss with dropout off, so that steps can be compared."""
    try:
        with evaluating(model), uncompiled():
            return float(loss(model).item())
    except Exception:  # steps may have broken the model
        return math.nan


def _gradient(loss: OfModel, model: nn.Module) -> Any:
    with uncompiled():
        _, gradient = nn.value_and_grad(model, loss)(model)
    return gradient


def _later(loss: OfModel, model: nn.Module) -> dict[str, float]:
    """Trainable parameter -> the norm of its gradient after the steps; none where it fails."""
    try:
        with evaluating(model):
            gradients = dict(tree_flatten(_gradient(loss, model)))
    except Exception:  # steps may have broken the model
        return {}
    return {name: _norm(gradient) for name, gradient in gradients.items()}


def _is_same(old: mx.array, new: mx.array | None) -> bool:
    """Whether an array is bit by bit what it was."""
    if new is None or new is old:
        return new is old
    return new.dtype == old.dtype and bool(mx.array_equal(old, new, equal_nan=True).item())


def _norm(array: mx.array) -> float:
    """L2 norm."""
    value: Any = mx.linalg.norm(array.astype(mx.float32).reshape(-1)).item()
    return float(value)


def _change(old: mx.array, new: mx.array | None) -> mx.array:
    """What steps changed, float32; one 0 where the array was not replaced, NaN where it is lost."""
    if new is old:
        return mx.array(0.0)
    if new is None or new.shape != old.shape:
        return mx.array(math.nan)
    return new.astype(mx.float32) - old.astype(mx.float32)


def _product(gradient: mx.array, change: mx.array) -> float:
    """What the gradient says that a change does to the loss, nats."""
    value: Any = (gradient.astype(mx.float32) * change).sum().item()
    return float(value) if math.isfinite(value) else 0.0
