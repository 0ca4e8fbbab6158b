"""Losses of pairs and of policies: which rows they push up and down, and what decides it.

Arrays of a batch are known by their names: that of the loss function's parameter, or the key of
a dict, with dots between the levels: "rewards", "chosen.input_ids".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map_with_path
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.calls import Call, as_called, parameters_of
from mlxdoctor.measure.training_step.logits import Tokens, gradients_of, pushes
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.measure.training_step.values import Alignment, Preferences
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
    """

    name: str
    path: str
    value: Any

    @property
    def words(self) -> frozenset[str]:
        """The words of its name, in lower case."""
        return frozenset(self.name.lower().replace(".", "_").split("_"))

    @property
    def array(self) -> NDArray[Any]:
        """The value as an array of NumPy, which has no bfloat16."""
        value = self.value
        is_floating = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
        return np.array(value.astype(mx.float32) if is_floating else value)

    @property
    def is_label(self) -> bool:
        """Whether these are yes or no for each row, as in KTO, and not amounts."""
        is_binary = self.array.dtype == bool or bool(np.isin(self.array, (0, 1)).all())
        return is_binary and not self.words & REWARDS


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
    """The arrays of a name or position, and those below it; raises where there is none."""
    of_name = [
        array
        for array in arrays
        if f"{array.path if isinstance(name, int) else array.name}.".startswith(f"{name}.")
    ]
    if of_name:
        return of_name
    known = ", ".join(dict.fromkeys(array.name.partition(".")[0] for array in arrays)) or "none"
    problem = f"the batch has no array {name!r} for {what} (its arrays: {known})"
    raise InputError(None, problem, "name another")


def pairs_in(trainer: Trainer, alignment: Alignment) -> Preferences | None:
    """How the loss pushes chosen and rejected rows; None where nothing names them.

    Raises:
        InputError: the batch has no arrays of the names that the trainer gave.
    """
    rows = [row[:width] for row, width in zip(alignment.inputs, alignment.widths, strict=True)]
    if trainer.pairs == "halves":
        names = ("the first half of the rows", "the second half")
        roles = [1 if row < len(rows) // 2 else -1 for row in range(len(rows))]
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
        chosen, rejected = _texts(up), _texts(down)
        roles = [_holds(chosen, row) - _holds(rejected, row) for row in rows]
    by_row = alignment.weights.sum(axis=1, dtype=np.float64)
    return Preferences(names, np.array(roles, np.float64), by_row)


def _of_words(arrays: list[BatchArray], words: frozenset[str]) -> list[BatchArray]:
    """The arrays of tokens whose name has one of the words."""
    return [
        each
        for each in arrays
        if each.words & words and not each.words & NO_TOKENS
        # One dimension is one row of a list of them.
        if each.array.ndim == 2 or (each.array.ndim == 1 and "." in each.path)
        if each.array.dtype.kind in "iu"
    ]


def _text(row: Tokens) -> str:
    """Tokens with a blank on both sides of each."""
    return f" {' '.join(map(str, row.tolist()))} "


def _texts(arrays: list[BatchArray]) -> list[str]:
    return [_text(row) for each in arrays for row in np.atleast_2d(each.array.astype(np.int32))]


def _holds(texts: list[str], row: Tokens) -> bool:
    """Whether a row is part of one of several, whatever both are padded with."""
    # Padding is the run of one token that a row ends with.
    other = np.flatnonzero(row != row[-1]) if row.size else row
    bare = _text(row[: max(int(other[-1]) + 1 if other.size else 0, 1)])
    return any(bare in text for text in texts)


def policy_in(trainer: Trainer, calls: Sequence[Call], alignment: Alignment) -> Preferences | None:
    """Rewarded answers, and their pushes where every reward is reversed; else as `pairs_in`."""
    rewards, named = None, trainer.rewards
    if callable(named):
        batch = named(-1.0)
    else:
        arrays = arrays_of(trainer)
        rewards = _rewards_in(arrays) if named is None else _named(arrays, named, "rewards")[0]
        if rewards is None:
            return None
        batch = _reversed(trainer.batch, rewards)
    answers = len(alignment.inputs)
    turned, _ = gradients_of(as_called(trainer.loss_fn, batch), trainer.model)
    shapes = [[call.logits.shape for call in made] for made in (calls, turned)]
    values = np.zeros(0) if rewards is None else rewards.array.astype(np.float64)
    if values.shape[:1] != (answers,):
        values = values.reshape(-1)
    if answers and len(values) == answers:
        # One reward for each answer; as they are where they do not go with them.
        values = values.reshape(answers, -1).sum(axis=1)
    return Preferences(
        names=("rewards" if rewards is None else rewards.name,),
        rewards=values,
        pushes=pushes(calls, alignment),
        reversed=(
            pushes(turned, alignment) if shapes[0] == shapes[1] else np.full(answers, np.nan)
        ),
        labels=rewards is not None and rewards.is_label,
    )


def _rewards_in(arrays: list[BatchArray]) -> BatchArray | None:
    """What is named as rewards or advantages; None where nothing is, or more than one."""
    likely = (each for each in arrays if each.words & REWARDS and not each.words & NO_REWARDS)
    named = [each for each in likely if each.array.ndim <= 2]
    # Where both are given, what the loss multiplies with is the advantage.
    advantages = [each for each in named if not each.words & {"reward", "rewards"}]
    chosen = advantages or named
    return chosen[0] if len(chosen) == 1 else None


def _reversed(batch: Any, rewards: BatchArray) -> Any:
    """The batch with its rewards times -1; labels are turned round."""

    def turned(path: str | None, old: Any) -> Any:
        if (path or "") != rewards.path:
            return old
        if isinstance(old, tuple | list):
            return type(old)(type(each)(1 - each if rewards.is_label else -each) for each in old)
        return (1 - old).astype(old.dtype) if rewards.is_label else -old

    return tree_map_with_path(turned, batch, is_leaf=_is_numbers)
