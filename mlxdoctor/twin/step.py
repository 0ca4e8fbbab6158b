"""One training step, compiled: loss, gradient, accumulation, clipping, guard, update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.utils import build_schedule

from mlxdoctor.evidence.mlx_lm_defaults import OPTIMIZERS
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.parts import LossFunction
from mlxdoctor.twin.settings import Settings

#: Elements above which a gradient is not copied for the sake of fewer kernels.
STACKED = 2**20


#: Of the batches since the last update the weighted sum of gradients, and that of the weights.
Accumulated = tuple[Any, mx.array]


class StepOutput(NamedTuple):
    """What a step gives, all lazy scalars but `accumulated`, which is for the next step.

    Attributes:
        supervised: the batch's supervised tokens.
        grad_norm: of the update, before clipping; 0 where none is made, or it is not wanted.
    """

    loss: mx.array
    supervised: mx.array
    grad_norm: mx.array
    accumulated: Accumulated | None


Step = Callable[[mx.array, mx.array, Accumulated | None, bool], StepOutput]


def compile_step(
    model: Any, optimizer: Any, loss: LossFunction, settings: Settings, *, norms: bool = True
) -> Step:
    """Compile the step of a model whose trainable parameters are final.

    Args:
        optimizer: initialised with the model's trainable parameters.
        settings: exact weighs each batch by its supervised tokens, parity all alike.
        norms: whether `grad_norm` is wanted.

    Returns:
        `(tokens, spans, accumulated, is_update) -> StepOutput`, not evaluated.
    """
    value_and_grad = nn.value_and_grad(model, loss)
    state = [model.state, optimizer.state, mx.random.state]

    def step(tokens: mx.array, spans: mx.array, before: Any, is_update: bool) -> StepOutput:
        (value, supervised), gradient = value_and_grad(model, tokens, spans)
        # A batch that is an update by itself needs no weight.
        if before is not None or not is_update:
            weight = mx.array(1.0)
            if settings.is_exact:
                # In float32, whatever the parameters are: half precision cannot count tokens.
                weight = supervised.astype(mx.float32)
                gradient = tree_map(lambda array: array.astype(mx.float32) * weight, gradient)
            if before is not None:
                gradient, weight = tree_map(mx.add, gradient, before[0]), weight + before[1]
            if not is_update:
                return StepOutput(value, supervised, mx.array(0.0), (gradient, weight))
            divisor = mx.maximum(weight, 1.0)
            gradient = tree_map(
                lambda total, old: (total / divisor).astype(old.dtype),
                gradient,
                model.trainable_parameters(),
            )
        is_asked = norms or settings.grad_clip is not None
        norm = mx.sqrt(square_norm(gradient)) if is_asked else mx.array(0.0)
        if settings.grad_clip is not None:
            factor = mx.minimum(1.0, settings.grad_clip / (norm + 1e-6))
            gradient = tree_map(lambda array: (array * factor).astype(array.dtype), gradient)
        optimizer.update(model, gradient)
        return StepOutput(value, supervised, norm, None)

    compiled = mx.compile(step, inputs=state, outputs=state)
    # Named tuples come out of a compiled function as plain ones.
    return lambda *given: StepOutput(*compiled(*given))


def square_norm(gradient: Any) -> mx.array:
    """The sum of squares of all gradients, float32 ().

    On a GPU it is the number of kernels that costs: small tensors of one shape are stacked, which
    takes one kernel each where squaring and adding up takes two or three.
    """
    alike: dict[Any, list[mx.array]] = {}
    for name, array in tree_flatten(gradient):
        key = (array.shape, array.dtype) if array.size <= STACKED else name
        alike.setdefault(key, []).append(array)
    sums = [
        (mx.stack(same) if len(same) > 1 else same[0]).astype(mx.float32).square().sum()
        for same in alike.values()
    ]
    return sum(sums, start=mx.array(0.0))


def build_optimizer(settings: Settings) -> Any:
    """The optimizer, not yet initialised, with the schedule's or the constant rate, as mlx-lm's.

    Raises:
        InputError: the schedule or the optimizer's options are not MLX's.
    """
    kinds = (optim.Adam, optim.AdamW, optim.Muon, optim.SGD, optim.Adafactor)
    kind = dict(zip(OPTIMIZERS, kinds, strict=True))[settings.optimizer]
    options = settings.optimizer_config.get(settings.optimizer) or {}
    if "learning_rate" in options:
        problem = "optimizer_config states a learning_rate"
        raise InputError(None, problem, "state it at the top level")
    try:
        return kind(learning_rate=_rate(settings), **options)
    except (TypeError, ValueError) as error:
        problem = f"optimizer_config.{settings.optimizer} is not what MLX takes ({error})"
        raise InputError(None, problem) from None


def _rate(settings: Settings) -> Any:
    schedule = settings.lr_schedule
    if not schedule:
        return settings.learning_rate
    known = {"name", "arguments", "warmup", "warmup_init"}
    for key in sorted(set(schedule) - known):
        raise InputError(None, f"lr_schedule has the unknown key {key!r}", f"it takes {known}")
    try:
        rate = build_schedule(dict(schedule))
        rate(0)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"lr_schedule is not one MLX has ({type(error).__name__}: {error})"
        remedy = "for example name: cosine_decay, arguments: [1e-4, 1000], warmup: 100"
        raise InputError(None, problem, remedy) from None
    return rate
