"""What of a batch comes to the optimizer in a step of the user's own, which may add up its parts.

The gradient that the optimizer is given is taken apart into those of the rows, each alone: they add
up to it however the loss weighs rows. Where several calls of the step make one update, each call is
given one row, and the calls are told apart in the same way.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from numpy.typing import NDArray

from mlxdoctor.evidence.kind import Missing
from mlxdoctor.measure.training_step.calls import as_called, bound, uncompiled
from mlxdoctor.measure.training_step.preferences import arrays_of
from mlxdoctor.measure.training_step.state import handed_back, kept_state
from mlxdoctor.measure.training_step.trainer import Trainer

#: Rows that are told apart: each takes a gradient of its own. Calls before the first update.
MOST_ROWS, MOST_CALLS = 16, 32
#: Numbers of all rows' gradients together: some parameters' are enough.
MOST_NUMBERS = 20_000_000
#: Share of a gradient's norm that the rows' gradients may leave over for it to be made of them: 0
#: in exact arithmetic; dropout leaves more, and so does a loss that compares rows.
LEFT_OVER = 0.05
#: Least part of a row in the gradient of the loss, of all, for it to be looked for elsewhere.
SMALL = 1e-3

Gradients = dict[str, mx.array]
Vector = NDArray[np.float64]


def shares_of(trainer: Trainer) -> tuple[int, tuple[float, ...]]:
    """The share of each row in what one update is made from.

    Model and optimizers are put back; what else the step keeps is the user's.

    Args:
        trainer: with a step of its own.

    Returns:
        The calls that one update takes, and for each row of the batch, or for each call, its part
        of what the optimizer is given over its part of the loss's gradient: 1 where the step weighs
        it as the loss does, NaN where it has none in the loss.

    Raises:
        Missing: it can't be told.
    """
    rows = _rows(trainer)
    if not 2 <= rows <= MOST_ROWS:
        raise Missing(f"the batch has {rows} rows of tokens; 2 to {MOST_ROWS} are told apart")
    model, batch = trainer.model, trainer.batch
    with uncompiled(), handed_back(model, trainer.optimizer):
        names, left = list[str](), MOST_NUMBERS // rows
        for name, array in _trainable(trainer).items():
            if array.size <= left:
                names, left = [*names, name], left - array.size
        alone = [_of_row(batch, rows, row) for row in range(rows)]
        # A row without a target may give no number alone.
        vectors = [np.nan_to_num(_vector(names, _gradient(trainer, each))) for each in alone]
        whole = _parts(_vector(names, _gradient(trainer, batch)), vectors)
        with handed_back(model, trainer.optimizer):
            calls, given = _update(trainer, [batch])
        if calls > rows:
            raise Missing(f"an update takes {calls} calls, and the batch has {rows} rows")
        if calls > 1:
            calls, given = _update(trainer, alone)
            vectors, whole = vectors[:calls], whole[:calls]
        made = _parts(_vector(names, given), vectors)
    whole, made = (np.abs(parts) / np.abs(parts).sum() for parts in (whole, made))
    # An answer that is no better than its group pushes nothing.
    return calls, tuple(np.where(whole > SMALL, made / np.maximum(whole, SMALL), np.nan).tolist())


def _update(trainer: Trainer, batches: Sequence[Any]) -> tuple[int, Gradients]:
    """Call the step with these in turn until it updates: the calls, and the gradients given."""
    step: Any = trainer.step
    before = _trainable(trainer)
    with _given() as given:
        for call in range(MOST_CALLS):
            bound(step, batches[call % len(batches)])(trainer.model)
            now = _trainable(trainer)
            is_same = all(mx.array_equal(old, now.get(name, 0)) for name, old in before.items())
            if given or not is_same:
                # Several optimizers have parameters of their own.
                every = {name: array for each in given for name, array in each.items()}
                if not every or sum(map(len, given)) > len(every):
                    raise Missing("the step makes no single update with an optimizer of MLX")
                return call + 1, every
    raise Missing(f"{MOST_CALLS} calls of the step make no update")


@contextmanager
def _given() -> Iterator[list[Gradients]]:
    """While the context lasts, notes what gradients any optimizer of MLX is given.

    Afterwards every one of them has the state that it had.
    """
    kept, apply = list[Gradients](), optim.Optimizer.apply_gradients
    seen: list[Any] = []
    with ExitStack() as states:

        def noting(self: Any, gradients: Any, parameters: Any) -> Any:
            if not any(each is self for each in seen):
                seen.append(self)
                states.enter_context(kept_state(self))
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
    """The gradients of these parameters, float64 (numbers,)."""
    if not names or not gradients.keys() >= set(names):
        raise Missing("the step does not update what the loss has a gradient for")
    flat = [np.array(gradients[name].astype(mx.float32)).ravel() for name in names]
    return np.concatenate(flat).astype(np.float64)


def _parts(gradient: Vector, rows: Sequence[Vector]) -> Vector:
    """How much of a gradient each row's is, in its norm, float64 (rows,)."""
    if not gradient.any() or not np.isfinite(gradient).all():
        raise Missing("the gradient of the batch, or of an update, is zero or not finite")
    norms = np.array([np.linalg.norm(row) for row in rows])
    directions = np.stack(rows, axis=1) / np.where(norms > 0.0, norms, 1.0)
    parts, *_ = np.linalg.lstsq(directions, gradient, rcond=1e-4)
    left = float(np.linalg.norm(gradient - directions @ parts))
    if left > LEFT_OVER * float(np.linalg.norm(gradient)):
        raise Missing("the gradient is more than the sum of the rows' own: of dropout, say")
    return np.asarray(parts)


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
