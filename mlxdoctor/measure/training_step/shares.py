"""What of a batch comes to the optimizer in a step of the user's own, which may add up its parts.

The gradient that the optimizer is given is taken apart into those of the rows, each alone: they add
up to it however the loss weighs rows. Where several calls of the step make one update, each call is
given one row, and the calls are told apart in the same way.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.calls import as_called, bound, uncompiled
from mlxdoctor.measure.training_step.preferences import arrays_of
from mlxdoctor.measure.training_step.state import handed_back
from mlxdoctor.measure.training_step.trainer import Trainer

#: Rows that are told apart: each takes a gradient of its own. Calls before the first update.
MOST_ROWS, MOST_CALLS = 16, 32
#: Numbers of all rows' gradients together: the first parameters' are enough.
MOST_NUMBERS = 20_000_000
#: Share of a gradient's norm that the rows' gradients may leave over for it to be made of them:
#: dropout leaves more, and so does a loss that compares rows.
LEFT_OVER = 0.05
#: Least part of a row in the gradient of the loss that is looked for, in that of the largest.
SMALL = 1e-3

Gradients = dict[str, mx.array]
Vector = NDArray[np.float64]


def shares_of(trainer: Trainer) -> tuple[int, tuple[float, ...]]:
    """The share of each row in what one update is made from; the model is put back.

    Args:
        trainer: with a step of its own.

    Returns:
        The calls that one update takes, and the share of each of its rows, or calls, as a multiple
        of what it has in the gradient of the loss; none where that can't be told.
    """
    rows = _rows(trainer)
    if not 2 <= rows <= MOST_ROWS:
        return 1, ()
    model, batch = trainer.model, trainer.batch
    with uncompiled(), handed_back(model, trainer.optimizer):
        alone = [_of_row(batch, rows, row) for row in range(rows)]
        every = [_gradient(trainer, each) for each in alone]
        plain = _gradient(trainer, batch)
        with handed_back(model, trainer.optimizer):
            calls, given = _update(trainer, [batch])
        if calls > 1:
            calls, given = _update(trainer, alone)
    names, left = [], MOST_NUMBERS // rows
    for name in plain.keys() & given.keys():
        left -= plain[name].size
        names += [name] if left >= 0 else []
    if not names:
        return calls, ()
    vectors = [_vector(names, each) for each in every]
    whole, made = (_parts(_vector(names, each), vectors) for each in (plain, given))
    if whole is None or made is None:
        return calls, ()
    # An answer that is no better than its group pushes nothing.
    counted = whole > SMALL * np.abs(whole).max()
    if calls > 1:
        counted[calls:] = False
    return calls, tuple((made[counted] / whole[counted]).tolist())


def _update(trainer: Trainer, batches: Sequence[Any]) -> tuple[int, Gradients]:
    """Call the step with these in turn until it updates: the calls, and the gradients given."""
    step: Any = trainer.step
    before = _trainable(trainer)
    with _given() as given:
        for call in range(MOST_CALLS):
            bound(step, batches[call % len(batches)])(trainer.model)
            now = _trainable(trainer)
            if given or not all(mx.array_equal(now[name], old) for name, old in before.items()):
                # Several optimizers have parameters of their own; what one has twice is of several
                # batches. One that is not MLX's is not heard.
                every = {name: array for each in given for name, array in each.items()}
                return call + 1, every if sum(map(len, given)) == len(every) else {}
    return MOST_CALLS, {}


@contextmanager
def _given() -> Iterator[list[Gradients]]:
    """While the context lasts, notes what gradients any optimizer of MLX is given."""
    kept, apply = list[Gradients](), optim.Optimizer.apply_gradients

    def noting(self: Any, gradients: Any, parameters: Any) -> Any:
        mx.eval(gradients)
        kept.append(dict(tree_flatten(gradients)))
        return apply(self, gradients, parameters)

    optim.Optimizer.apply_gradients = noting
    try:
        yield kept
    finally:
        optim.Optimizer.apply_gradients = apply


def _trainable(trainer: Trainer) -> Gradients:
    return dict(tree_flatten(nn.Module.trainable_parameters(trainer.model)))


def _gradient(trainer: Trainer, batch: Any) -> Gradients:
    loss = as_called(trainer.loss_fn, batch)
    _, gradients = nn.value_and_grad(trainer.model, loss)(trainer.model)
    return dict(tree_flatten(gradients))


def _vector(names: Sequence[str], gradients: Gradients) -> Vector:
    flat = [np.array(gradients[name].astype(mx.float32)).ravel() for name in names]
    return np.concatenate(flat).astype(np.float64)


def _parts(gradient: Vector, rows: list[Vector]) -> Vector | None:
    """How much of a gradient each row's is, (rows,), in its norm; None where that can't be told."""
    norms = np.array([np.linalg.norm(row) for row in rows])
    directions = np.stack(rows, axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    parts, *_ = np.linalg.lstsq(directions, gradient, rcond=1e-4)
    left = np.linalg.norm(gradient - directions @ parts)
    return parts if left <= LEFT_OVER * np.linalg.norm(gradient) else None


def _rows(trainer: Trainer) -> int:
    """The rows of the batch: of its first array of tokens; 0 where it has none."""
    arrays = (each.array for each in arrays_of(trainer))
    return next((len(array) for array in arrays if array.ndim == 2 and array.dtype.kind in "iu"), 0)


def _of_row(batch: Any, rows: int, row: int) -> Any:
    """The batch with one row in the place of each."""

    def repeated(value: Any) -> Any:
        if isinstance(value, mx.array | np.ndarray) and value.ndim and len(value) == rows:
            numbers: Any = mx if isinstance(value, mx.array) else np
            return numbers.repeat(value[row : row + 1], rows, axis=0)
        if _is_plain(value) and len(value) == rows:
            return type(value)([value[row]] * rows)
        return value

    return tree_map(repeated, batch, is_leaf=_is_plain)


def _is_plain(value: Any) -> bool:
    """Whether it is a list of texts or numbers, one for each row."""
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(isinstance(each, str | int | float) for each in value)
