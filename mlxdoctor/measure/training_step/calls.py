"""Call a loss whatever its signature is, and listen to the calls it makes of the model.

Nothing of the user's code is read: for the time being, the model gets a subclass of its own
class that passes every call on, keeps what went in and out, and adds an array of zeros to the
logits. The gradient of the loss with respect to those zeros is its gradient with respect to
the logits, wherever in the loss the model is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.stages import Kind, Stage

#: What the model is called in people's losses, where not by a word with "model" in it.
MODEL_NAMES = frozenset({"net", "network", "module", "llm", "lm", "m", "policy", "args", "params"})


@dataclass
class Calls:
    """What the loss asked of the model, call by call.

    Attributes:
        inputs: the integer array (rows, positions) of each call; None where it had none.
        logits: what each call gave.
        offsets: added to the logits of each call where there are any.
        replaced: number of a call -> tokens that it is given instead of its own.
    """

    inputs: list[mx.array | None] = field(default_factory=list)
    logits: list[mx.array] = field(default_factory=list)
    offsets: Sequence[mx.array] = ()
    replaced: Mapping[int, mx.array] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the calls of the pass before."""
        self.inputs.clear()
        self.logits.clear()


def require_module(model: Any) -> None:
    """Raise an `InputError` where `model` is not one of MLX."""
    if not isinstance(model, nn.Module):
        raise InputError(None, f"the model is a {type(model).__name__}, not an mlx.nn.Module")


@contextmanager
def heard(model: Any) -> Iterator[Calls]:
    """While the context lasts, every call of `model` is noted in what this yields."""
    kind, calls = type(model), Calls()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        number = len(calls.logits)
        if number in calls.replaced:
            own, other = _tokens_in((*arguments, *options.values())), calls.replaced[number]
            arguments = tuple(other if one is own else one for one in arguments)
            options = {name: other if one is own else one for name, one in options.items()}
        output = kind.__call__(self, *arguments, **options)
        logits = _logits_of(output)
        if logits is None:
            return output
        calls.inputs.append(_tokens_in((*arguments, *options.values())))
        calls.logits.append(logits)
        if number >= len(calls.offsets):
            return output
        return _with_logits(output, logits + calls.offsets[number].astype(logits.dtype))

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    try:
        yield calls
    finally:
        model.__class__ = kind


def bound(function: Callable[..., Any], model: Any, batch: Any) -> Callable[[Any], Any]:
    """A function of the user's as a function of the model alone.

    The batch is handed over as the function's signature takes it: spread out where it is a
    tuple or a list, or a dict of the parameters' names; whole elsewhere; with the model
    before it, or without where the function holds the model itself. Where both fit, the
    name of its first parameter decides.

    Raises:
        InputError: no way of calling it fits its signature.
    """
    spread: tuple[Any, ...] = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    named: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else {}
    takes_model = _takes_model(function)
    for first in (takes_model, not takes_model):
        for arguments, options in ((spread, {}), ((batch,), {}), ((), named), ((), {})):
            if _fits(function, (model, *arguments) if first else arguments, options):
                return partial(_called, function, arguments, options, first)
    raise InputError(
        None,
        f"{getattr(function, '__name__', 'the function')} cannot be called with the model and a "
        f"batch of {len(spread)} parts",
        "let it take (model, *batch)",
    )


def _takes_model(function: Callable[..., Any]) -> bool:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True
    return not names or "model" in names[0].lower() or names[0] in MODEL_NAMES


def as_called(loss: Callable[..., Any], model: Any, batch: Any) -> Callable[[Any], mx.array]:
    """The loss as a function of the model alone, giving its first value as a scalar.

    Raises:
        InputError: as `bound`; from the function itself, as `scalar_of`.
    """
    call = bound(loss, model, batch)
    return lambda one: scalar_of(call(one))


def _called(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    first: bool,
    model: Any,
) -> Any:
    name = getattr(function, "__name__", type(function).__name__)
    with Stage(f"your function {name}", Kind.CODE, limit="code_seconds"):
        return function(model, *arguments, **options) if first else function(*arguments, **options)


def scalar_of(value: Any) -> mx.array:
    """The loss in what a loss function returned.

    Raises:
        InputError: there is no scalar array in it.
    """
    first = value[0] if isinstance(value, tuple | list) and len(value) else value
    if isinstance(first, Mapping):
        first = first.get("loss")
    if isinstance(first, mx.array) and first.size == 1:
        return first.reshape(())
    got = f"an array of shape {first.shape}" if isinstance(first, mx.array) else type(first)
    raise InputError(
        None, f"the loss function returned {got} where a scalar is needed", "return the mean loss"
    )


def _fits(loss: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments, **options)
    except TypeError:
        return False
    return True


def _logits_of(output: Any) -> mx.array | None:
    for one in (output, *_parts(output)):
        if isinstance(one, mx.array) and one.ndim == 3 and mx.issubdtype(one.dtype, mx.floating):
            return one
    return None


def _parts(output: Any) -> tuple[Any, ...]:
    if isinstance(output, tuple | list):
        return tuple(output)
    if isinstance(output, Mapping):
        return tuple(output.values())
    return (getattr(output, "logits", None),)


def _with_logits(output: Any, logits: mx.array) -> Any:
    if isinstance(output, mx.array):
        return logits
    old = _logits_of(output)
    if isinstance(output, Mapping):
        return {name: logits if one is old else one for name, one in output.items()}
    if isinstance(output, tuple | list):
        parts = [logits if one is old else one for one in output]
        # A named tuple takes its parts one by one.
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    output.logits = logits
    return output


def _tokens_in(values: Sequence[Any]) -> mx.array | None:
    for one in values:
        if isinstance(one, mx.array) and one.ndim == 2 and mx.issubdtype(one.dtype, mx.integer):
            return one
    return None
