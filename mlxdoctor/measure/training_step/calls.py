"""Call a loss whatever its signature is, and listen to the calls it makes of the model.

Nothing of the user's code is read: for the time being, the model gets a subclass of its own
class that passes every call on, keeps what went in and out, and adds an array of zeros to the
logits. The gradient of the loss with respect to those zeros is its gradient with respect to
the logits, wherever in the loss the model is called.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.stages import Kind, Stage

#: What the model is called in people's losses, where not by a word with "model" in it.
MODEL_NAMES = frozenset({"net", "network", "module", "llm", "lm", "m", "policy", "args", "params"})

#: A loss, or a step, as a function of the model alone.
OfModel = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Call:
    """One call that the loss made of the model.

    Attributes:
        tokens: the integers (rows, positions) that it was given; None where there were none.
        logits: (rows, positions, vocabulary), and the loss's gradient with respect to them.
    """

    tokens: mx.array | None
    logits: mx.array
    gradient: Any = None


def require_module(model: Any) -> None:
    """Raise an `InputError` where `model` is not one of MLX."""
    if not isinstance(model, nn.Module):
        raise InputError(None, f"the model is a {type(model).__name__}, not an mlx.nn.Module")


@contextmanager
def heard(model: Any, offsets: Sequence[mx.array] = ()) -> Iterator[list[Call]]:
    """While the context lasts, every call of `model` is noted in what this yields.

    The offsets are added to the logits of each call. Nothing is compiled meanwhile.
    """
    kind, calls = type(model), list[Call]()

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        output = kind.__call__(self, *arguments, **options)
        values = tree_flatten([output, getattr(output, "logits", None)])
        logits = _first((value for _, value in values), 3, mx.floating)
        if logits is None:
            return output
        calls.append(Call(_first((*arguments, *options.values()), 2, mx.integer), logits))
        if len(calls) > len(offsets):
            return output
        moved = logits + offsets[len(calls) - 1].astype(logits.dtype)
        if getattr(output, "logits", None) is logits and not hasattr(output, "_fields"):
            output.logits = moved
            return output
        return tree_map(lambda value: moved if value is logits else value, output)

    model.__class__ = type(kind.__name__, (kind,), {"__call__": call})
    try:
        with uncompiled():
            yield calls
    finally:
        model.__class__ = kind


@contextmanager
def uncompiled() -> Iterator[None]:
    """While the context lasts, nothing is compiled.

    A compiled loss would keep what it was given first, and may leave it in the model.
    """
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


def _first(values: Iterable[Any], dimensions: int, kind: mx.DtypeCategory) -> Any:
    """The first array of so many dimensions and that kind of number; None where there is none."""
    arrays = (value for value in values if isinstance(value, mx.array) and value.ndim == dimensions)
    return next((array for array in arrays if mx.issubdtype(array.dtype, kind)), None)


def bound(function: Callable[..., Any], batch: Any) -> OfModel:
    """A function of the user's as a function of the model alone.

    The batch is handed over as the signature takes it: spread out where it is a tuple, a list or a
    dict of the parameters' names, else whole; after the model, or without it where the function
    holds the model itself. Where both fit, the name of its first parameter decides.

    Raises:
        InputError: no way of calling it fits its signature.
    """
    spread: tuple[Any, ...] = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    named: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else {}
    names = parameters_of(function)
    takes_model = not names or "model" in names[0].lower() or names[0] in MODEL_NAMES
    called = getattr(function, "__name__", type(function).__name__)

    def call(model: Any) -> Any:
        with Stage(f"your function {called}", Kind.CODE, limit="code_seconds"):
            return function(*((model,) if has_model else ()), *arguments, **options)

    signature = _signature(function)
    for has_model in (takes_model, not takes_model):
        for arguments, options in ((spread, {}), ((batch,), {}), ((), named), ((), {})):
            with suppress(TypeError):
                if signature is not None:
                    signature.bind(*((None,) if has_model else ()), *arguments, **options)
                return call
    problem = f"{called} cannot be called with the model and a batch of {len(spread)} parts"
    raise InputError(None, problem, "let it take (model, *batch)")


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    with suppress(TypeError, ValueError):
        return inspect.signature(function)
    return None


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters; empty where it does not tell them."""
    signature = _signature(function)
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values() if signature is not None else ()
    return [parameter.name for parameter in parameters if parameter.kind in plain]


def as_called(loss: Callable[..., Any], batch: Any) -> OfModel:
    """The loss as a function of the model alone, giving its first value as a scalar.

    Raises:
        InputError: as `bound`; from the function itself, where it returns no scalar array.
    """
    call = bound(loss, batch)

    def scalar(model: Any) -> mx.array:
        value = call(model)
        first = value[0] if isinstance(value, tuple | list) and len(value) else value
        if isinstance(first, Mapping):
            first = first.get("loss")
        if isinstance(first, mx.array) and first.size == 1:
            return first.reshape(())
        got = f"an array of shape {first.shape}" if isinstance(first, mx.array) else type(first)
        problem = f"the loss function returned {got} where a scalar is needed"
        raise InputError(None, problem, "return the mean loss")

    return scalar
