"""A user's trainer, as a function of theirs hands it over."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from mlxdoctor.evidence.source import Source, hash_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.user_code import load_named
from mlxdoctor.safety.user_failure import UserCodeError, failure_of

_SHAPE = "return (model, loss_fn, batch), then optimizer and tokenizer, or a dict with these names"
#: What may be expected to be trained: LoRA or DoRA layers and nothing else, or the whole model.
EXPECTED = ("lora", "dora", "full")
#: So many come in a tuple at most; what follows is named in a dict.
IN_A_TUPLE = 6


@dataclass(frozen=True)
class Trainer:
    """What a training step is made of: the arguments of `mlxdoctor.probe`, which says what each is.

    Raises:
        InputError: `expect` or `pairs` is none of what it may be.
    """

    model: Any
    loss_fn: Callable[..., Any]
    batch: Any
    optimizer: Any = None
    tokenizer: Any = None
    step: Callable[..., Any] | None = None
    expect: str | None = None
    rewards: str | int | Callable[[float], Any] | None = None
    pairs: tuple[str | int, str | int] | str | None = None

    def __post_init__(self) -> None:
        if self.expect not in (None, *EXPECTED):
            remedy = f"say one of {', '.join(EXPECTED)}"
            raise InputError(None, f"expect={self.expect!r} is unknown", remedy)
        is_two = isinstance(self.pairs, tuple | list) and len(self.pairs) == 2
        if self.pairs not in (None, "halves") and not is_two:
            remedy = "name two arrays, or say 'halves'"
            raise InputError(None, f"pairs={self.pairs!r} is unknown", remedy)


def load_trainer(name: str) -> tuple[Trainer, tuple[Source, ...]]:
    """What the function named as `FILE.py:FUNCTION` returns, and its file. Runs the user's code.

    Raises:
        InputError: it cannot be found, needs arguments, fails, or returns something else.
    """
    function, file = load_named(name, "a function that returns a trainer")
    try:
        # A class or a built-in function may have no signature to read.
        with suppress(ValueError):
            inspect.signature(function).bind()
    except TypeError as error:
        raise InputError(None, f"{name}: {error}", "write one that takes no arguments") from None
    try:
        given = function()
    except InputError:
        raise
    except Exception as error:  # a user's code may raise anything
        problem = f"{name} fails ({failure_of(error).sentence})"
        raise UserCodeError(None, problem, "run it by hand") from error
    sources, names = (hash_file(file),), [field.name for field in fields(Trainer)]
    if isinstance(given, Mapping):
        foreign = sorted(set(given) - set(names))
        missing = [needed for needed in names[:3] if needed not in given]
        if foreign or missing:
            wrong = f"has no {missing[0]!r}" if missing else f"has {foreign[0]!r}"
            raise InputError(None, f"the dict that {name} returned {wrong}", _SHAPE)
        return Trainer(**given), sources
    if isinstance(given, tuple | list) and 3 <= len(given) <= IN_A_TUPLE:
        return Trainer(*given), sources
    raise InputError(None, f"{name} returned a {type(given).__name__}", _SHAPE)
