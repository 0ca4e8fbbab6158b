"""Losses of pairs and of policies: which rows they push up and down, and what decides it.

Arrays of a batch are known by their names: that of the loss function's parameter, or the key of
a dict, with dots between the levels: "rewards", "chosen.input_ids".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.calls import Calls, as_called, parameters_of
from mlxdoctor.measure.training_step.logits import Passes, Tokens, passes_of, pushes
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.measure.training_step.values import Alignment, Pairs, Policy
from mlxdoctor.safety.errors import InputError

#: Words in the name of what a policy is rewarded by, and of what is no reward beside them.
REWARDS = frozenset({"reward", "rewards", "advantage", "advantages", "adv", "advs", "returns"})
NO_REWARDS = frozenset({"metrics", "fn", "func", "funcs", "function", "weight", "weights"})
#: Words in the names of the two answers of a pair, and of what is no array of tokens beside them.
CHOSEN = frozenset({"chosen", "preferred", "winner", "win", "accepted"})
REJECTED = frozenset({"rejected", "dispreferred", "loser", "lose"})
NO_TOKENS = frozenset(
    {"mask", "masks", "label", "labels", "attention", "position", "length", "lengths"}
)


class BatchArray(NamedTuple):
    """One array of a batch, or one list of numbers.

    Attributes:
        name: as above; positions where there are no names.
        path: keys and positions from the batch down to it, with dots between them.
        value: the array, or the list.
    """

    name: str
    path: str
    value: Any

    @property
    def words(self) -> frozenset[str]:
        """The words of its name, in lower case."""
        return frozenset(self.name.lower().replace(".", "_").split("_"))

    @property
    def array(self) -> mx.array:
        """The value as an array of MLX."""
        return self.value if isinstance(self.value, mx.array) else mx.array(self.value)


def _is_numbers(value: Any) -> bool:
    is_list = isinstance(value, tuple | list) and len(value) > 0
    return is_list and all(isinstance(number, int | float) for number in value)


def arrays_of(trainer: Trainer) -> list[BatchArray]:
    """Every array, and every list of numbers, of the batch as the loss function names them."""
    names: list[str] = []
    if isinstance(trainer.batch, tuple | list):
        names, parts = parameters_of(trainer.loss_fn), len(trainer.batch)
        # The model comes before the batch, or nothing does.
        names = names[max(0, len(names) - parts) if len(names) <= parts + 1 else 1 :]
    of_position = {str(position): name for position, name in enumerate(names)}
    arrays = []
    for path, value in tree_flatten(trainer.batch, is_leaf=_is_numbers):
        if isinstance(value, mx.array | np.ndarray | tuple | list):
            first, dot, rest = path.partition(".")
            arrays.append(BatchArray(of_position.get(first, first) + dot + rest, path, value))
    return arrays


def _named(arrays: list[BatchArray], name: str | int, what: str) -> list[BatchArray]:
    """The arrays of a name or position, and those below it.

    Raises:
        InputError: there is none.
    """
    of_name = [
        array
        for array in arrays
        if f"{array.path if isinstance(name, int) else array.name}.".startswith(f"{name}.")
    ]
    if of_name:
        return of_name
    known = ", ".join(dict.fromkeys(array.name.partition(".")[0] for array in arrays)) or "none"
    raise InputError(
        None, f"the batch has no array {name!r} for {what} (its arrays: {known})", "name another"
    )


def read_pairs(trainer: Trainer, alignment: Alignment) -> Pairs | None:
    """Which rows are chosen answers and which rejected; None where nothing speaks of pairs.

    Raises:
        InputError: the batch has no arrays of the names that the trainer gave.
    """
    rows = _rows(alignment)
    if trainer.pairs == "halves":
        half = len(rows) // 2
        names = ("the first half of the rows", "the second half")
        roles = [1 if row < half else -1 for row in range(len(rows))]
    else:
        arrays = arrays_of(trainer)
        if trainer.pairs is not None:
            up, down = (_named(arrays, name, "pairs") for name in trainer.pairs)
            names = (str(trainer.pairs[0]), str(trainer.pairs[1]))
        else:
            up, down = (_of_words(arrays, words) for words in (CHOSEN, REJECTED))
            if not up or not down:
                return None
            names = (min(up[0].words & CHOSEN), min(down[0].words & REJECTED))
        chosen, rejected = _token_rows(up), _token_rows(down)
        roles = [_holds(chosen, row) - _holds(rejected, row) for row in rows]
    return Pairs(names, np.array(roles, np.int32))


def _of_words(arrays: list[BatchArray], words: frozenset[str]) -> list[BatchArray]:
    """The arrays of tokens whose name has one of the words."""
    return [
        array
        for array in arrays
        if array.words & words and not array.words & NO_TOKENS
        # One dimension is one row of a list of them.
        if array.array.ndim == 2 or (array.array.ndim == 1 and "." in array.path)
        if mx.issubdtype(array.array.dtype, mx.integer)
    ]


def _rows(alignment: Alignment) -> list[Tokens]:
    return [row[:width] for row, width in zip(alignment.inputs, alignment.widths, strict=True)]


def _token_rows(arrays: list[BatchArray]) -> list[Tokens]:
    return [
        row for array in arrays for row in np.atleast_2d(np.array(array.array).astype(np.int32))
    ]


def _holds(rows: list[Tokens], wanted: Tokens) -> bool:
    """Whether a row is part of one of several, whatever both are padded with."""
    text = f" {_bare(wanted)} "
    return any(text in f" {' '.join(map(str, row.tolist()))} " for row in rows)


def _bare(row: Tokens) -> str:
    """A row as text, without the run of one token that it ends with, as padding is one."""
    other = np.flatnonzero(row != row[-1]) if row.size else row
    length = int(other[-1]) + 1 if other.size else 0
    return " ".join(map(str, row[: max(length, 1)].tolist()))


def read_policy(
    trainer: Trainer, calls: Calls, passes: Passes, alignment: Alignment
) -> Policy | None:
    """How the loss answers to its rewards; None where nothing speaks of rewards.

    Raises:
        InputError: the batch has no array of the name that the trainer gave.
    """
    rewards: BatchArray | None = None
    if not callable(trainer.rewards):
        arrays = arrays_of(trainer)
        if trainer.rewards is None:
            rewards = _rewards_in(arrays)
        else:
            rewards = _named(arrays, trainer.rewards, "rewards")[0]
        if rewards is None:
            return None
    groups = _answers(alignment)
    answers = int(groups.max()) + 1

    def per_answer(passes: Passes) -> NDArray[np.float64]:
        return np.bincount(groups, pushes(passes, alignment), answers).astype(np.float64)

    def pushed(factor: float) -> NDArray[np.float64] | None:
        if callable(trainer.rewards):
            batch = trainer.rewards(factor)
        else:
            assert rewards is not None
            batch = _multiplied(trainer.batch, rewards, factor)
        loss = as_called(trainer.loss_fn, trainer.model, batch)
        calls.clear()
        loss(trainer.model)
        changed = passes_of(loss, trainer.model, calls)
        shapes = [each.shape for each in changed.logits]
        return per_answer(changed) if shapes == [each.shape for each in passes.logits] else None

    is_label = rewards is not None and _is_label(rewards)
    turned, zeroed = pushed(-1.0), None if is_label else pushed(0.0)
    values = np.zeros(0)
    if rewards is not None:
        values = np.array(rewards.array.astype(mx.float32), np.float64)
    return Policy(
        name="rewards" if rewards is None else rewards.name,
        labels=is_label,
        rewards=_of_answers(values, answers),
        pushes=per_answer(passes),
        reversed=turned if turned is not None else np.full(answers, np.nan),
        same=values.size > 0 and bool((values == values.flat[0]).all()),
        breaks_at_zero=zeroed is not None and not np.isfinite(zeroed).all(),
    )


def _rewards_in(arrays: list[BatchArray]) -> BatchArray | None:
    """What is named as rewards or advantages; None where nothing is, or more than one."""
    named = [
        array
        for array in arrays
        if array.words & REWARDS and not array.words & NO_REWARDS and array.array.ndim <= 2
    ]
    # Where both are given, what the loss multiplies with is the advantage.
    advantages = [array for array in named if not array.words & {"reward", "rewards"}]
    chosen = advantages or named
    return chosen[0] if len(chosen) == 1 else None


def _is_label(rewards: BatchArray) -> bool:
    """Whether these are yes or no for each row, as in KTO, and not amounts."""
    array = rewards.array
    values = set(np.array(array.astype(mx.float32)).ravel().tolist())
    return not rewards.words & REWARDS and (array.dtype == mx.bool_ or values <= {0, 1})


def _multiplied(batch: Any, rewards: BatchArray, factor: float) -> Any:
    """The batch with its rewards times a factor; labels are turned round."""
    array = rewards.array
    changed = mx.logical_not(array).astype(array.dtype) if _is_label(rewards) else array * factor
    value: Any = changed
    if isinstance(rewards.value, np.ndarray):
        value = np.array(changed).astype(rewards.value.dtype)
    elif not isinstance(rewards.value, mx.array):
        value = type(rewards.value)(np.array(changed).tolist())

    def replaced(path: str | None, old: Any) -> Any:
        return value if (path or "") == rewards.path else old

    return tree_map_with_path(replaced, batch, is_leaf=_is_numbers)


def _answers(alignment: Alignment) -> NDArray[np.int64]:
    """Which answer each row is, int64 (rows,): the same one may be in several forward passes."""
    if len(set(alignment.forwards.tolist())) == 1:
        return np.arange(len(alignment.inputs))
    numbers: dict[str, int] = {}
    texts = [" ".join(map(str, row.tolist())) for row in _rows(alignment)]
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def _of_answers(values: NDArray[np.float64], answers: int) -> NDArray[np.float64]:
    """One reward for each answer; empty where they do not go with them."""
    if values.shape[:1] != (answers,):
        values = values.reshape(-1)
    if not answers or values.shape[:1] != (answers,):
        return np.zeros(0)
    return np.asarray(values.reshape(answers, -1).sum(axis=1))
