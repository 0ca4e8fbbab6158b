"""The arrays of a batch by name, and the batch again with one of them replaced.

A name is that of the loss function's parameter, or the key of a dict, with dots between the
levels: "rewards", "chosen.input_ids".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxdoctor.safety.errors import InputError

#: Words in the name of what a policy is rewarded by, and of what is no reward beside them.
REWARDS = frozenset({"reward", "rewards", "advantage", "advantages", "adv", "advs", "returns"})
NO_REWARDS = frozenset({"metrics", "fn", "func", "funcs", "function", "weight", "weights"})
#: Words in the names of the two answers of a pair.
CHOSEN = frozenset({"chosen", "preferred", "winner", "win", "accepted"})
REJECTED = frozenset({"rejected", "dispreferred", "loser", "lose"})


@dataclass(frozen=True)
class BatchArray:
    """One array of a batch.

    Attributes:
        name: as above; its position where it has none.
        path: keys and positions from the batch down to it.
        value: the array, or the list of numbers.
    """

    name: str
    path: tuple[str | int, ...]
    value: Any

    @property
    def words(self) -> frozenset[str]:
        """The words of its name, in lower case."""
        return frozenset(self.name.lower().replace(".", "_").split("_"))

    @property
    def array(self) -> mx.array:
        """The value as an array of MLX."""
        return self.value if isinstance(self.value, mx.array) else mx.array(self.value)


def arrays_of(loss: Callable[..., Any], batch: Any) -> list[BatchArray]:
    """Every array, and every list of numbers, of a batch as the loss function names them."""
    names = _parameters(loss) if isinstance(batch, tuple | list) else []
    if isinstance(batch, tuple | list):
        # The model comes before the batch, or nothing does.
        offset = max(0, len(names) - len(batch)) if len(names) <= len(batch) + 1 else 1
        names = names[offset:]
    return list(_walk(batch, (), "", names))


def _parameters(loss: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in plain]


def _walk(
    value: Any, path: tuple[str | int, ...], name: str, names: list[str]
) -> Iterator[BatchArray]:
    if isinstance(value, mx.array | np.ndarray) or _is_numbers(value):
        yield BatchArray(name or str(path[-1]) if path else name, path, value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _walk(one, (*path, key), f"{name}.{key}" if name else str(key), [])
    elif isinstance(value, tuple | list):
        for at, one in enumerate(value):
            own = names[at] if at < len(names) else str(at)
            yield from _walk(one, (*path, at), f"{name}.{own}" if name else own, [])


def _is_numbers(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) > 0
        and all(isinstance(one, int | float) for one in value)
    )


def named(arrays: list[BatchArray], asked: str | int, what: str) -> BatchArray:
    """The array of a name or position.

    Raises:
        InputError: there is none.
    """
    for one in arrays:
        is_it = one.path[:1] == (asked,) if isinstance(asked, int) else one.name == asked
        if is_it or (isinstance(asked, str) and one.name.split(".")[0] == asked):
            return one
    known = ", ".join(one.name for one in arrays) or "none"
    raise InputError(
        None, f"the batch has no array {asked!r} for {what} (its arrays: {known})", "name another"
    )


def rewards_in(arrays: list[BatchArray]) -> BatchArray | None:
    """What is named as rewards or advantages; None where nothing is, or more than one."""
    found = [
        one
        for one in arrays
        if one.words & REWARDS and not one.words & NO_REWARDS and one.array.ndim <= 2
    ]
    # Where both are given, what the loss multiplies with is the advantage.
    advantages = [one for one in found if not one.words & {"reward", "rewards"}]
    chosen = advantages or found
    return chosen[0] if len(chosen) == 1 else None


@dataclass(frozen=True)
class TokenRows:
    """Rows of tokens in a batch: one array of two dimensions, or a list of sequences.

    Attributes:
        name: of the array, or of the list.
        rows: int32 (positions,) each.
    """

    name: str
    rows: tuple[NDArray[np.int32], ...]

    @classmethod
    def of(cls, name: str, arrays: list[BatchArray]) -> TokenRows:
        """The rows of these arrays, one after the other."""
        rows = [np.array(one.array).astype(np.int32) for one in arrays]
        return cls(name, tuple(row for one in rows for row in (one if one.ndim == 2 else [one])))


def token_rows_in(arrays: list[BatchArray], words: frozenset[str]) -> TokenRows | None:
    """The rows of tokens whose name has one of the words; None where there are none."""
    found = [one for one in arrays if one.words & words and _are_tokens(one)]
    largest = max(found, key=lambda one: one.array.size, default=None)
    if largest is None:
        return None
    if largest.array.ndim == 2:
        return TokenRows.of(largest.name, [largest])
    beside = [one for one in found if one.path[:-1] == largest.path[:-1]]
    return TokenRows.of(largest.name.rpartition(".")[0] or largest.name, beside)


def named_token_rows(arrays: list[BatchArray], asked: str | int) -> TokenRows:
    """The rows of tokens of a name or position.

    Raises:
        InputError: there is no array of that name.
    """
    first = named(arrays, asked, "pairs")
    if first.array.ndim == 2:
        return TokenRows.of(first.name, [first])
    beside = [one for one in arrays if one.path[:-1] == first.path[:-1]]
    return TokenRows.of(str(asked), beside if first.path[:-1] else [first])


def _are_tokens(one: BatchArray) -> bool:
    is_sequence = one.array.ndim == 2 or (one.array.ndim == 1 and len(one.path) > 1)
    other = {"mask", "masks", "label", "labels", "attention", "position", "length", "lengths"}
    return is_sequence and mx.issubdtype(one.array.dtype, mx.integer) and not one.words & other


def is_label(rewards: BatchArray) -> bool:
    """Whether these are yes or no for each row, as in KTO, and not amounts."""
    array = rewards.array
    if rewards.words & REWARDS:
        return False
    return bool(array.dtype == mx.bool_ or set(np.unique(np.array(array)).tolist()) <= {0, 1})


def times(batch: Any, rewards: BatchArray, factor: float) -> Any:
    """The batch with its rewards times a factor; labels are turned round where it is negative."""
    array = rewards.array
    if is_label(rewards):
        changed = mx.logical_not(array) if factor < 0 else array
        changed = changed.astype(array.dtype)
    else:
        changed = array * factor if factor else mx.zeros_like(array)
    return _replaced(batch, rewards.path, _like(changed, rewards.value))


def _like(array: mx.array, value: Any) -> Any:
    if isinstance(value, mx.array):
        return array
    plain = np.array(array)
    if isinstance(value, np.ndarray):
        return plain.astype(value.dtype)
    return type(value)(plain.tolist())


def _replaced(container: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(container, Mapping):
        return {
            key: _replaced(one, rest, value) if key == first else one
            for key, one in container.items()
        }
    parts = [
        _replaced(one, rest, value) if at == first else one for at, one in enumerate(container)
    ]
    return type(container)(*parts) if hasattr(container, "_fields") else type(container)(parts)
