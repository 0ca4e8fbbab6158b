"""Losses of pairs and of policies: which rows they push up and down, and what decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxdoctor.measure.training_step.alignment import Passes, following, passes_of, pushes
from mlxdoctor.measure.training_step.batch_arrays import (
    CHOSEN,
    REJECTED,
    BatchArray,
    arrays_of,
    is_label,
    named,
    named_token_rows,
    rewards_in,
    times,
    token_rows_in,
)
from mlxdoctor.measure.training_step.calls import Calls, as_called
from mlxdoctor.measure.training_step.phases import (
    Alignment,
    Pairs,
    Policy,
    Reference,
)
from mlxdoctor.measure.training_step.trainer import Trainer

#: Where fewer positions have a single target, terms over whole distributions hide some of them.
CLEAR = 0.99

Tokens = NDArray[np.int32]


def read_pairs(trainer: Trainer, passes: Passes, alignment: Alignment) -> Pairs | None:
    """Which rows are chosen answers and which rejected; None where nothing speaks of pairs.

    Raises:
        InputError: the batch has no arrays of the names that the trainer gave.
    """
    if trainer.pairs == "halves":
        return _halves(alignment)
    arrays = arrays_of(trainer.loss_fn, trainer.batch)
    if trainer.pairs is not None:
        chosen, rejected = (named_token_rows(arrays, one) for one in trainer.pairs)
    else:
        found = token_rows_in(arrays, CHOSEN), token_rows_in(arrays, REJECTED)
        if found[0] is None or found[1] is None:
            return None
        chosen, rejected = found[0], found[1]
    up, down = chosen.rows, rejected.rows
    roles = np.array([_role(row, up, down) for row in _rows(alignment)], np.int32)
    seen = {_role(row, up, down) for tokens in passes.inputs for row in _tokens(tokens)}
    same = [_bare(one) == _bare(other) for one, other in zip(up, down, strict=False)]
    return Pairs(
        names=(chosen.name, rejected.name),
        roles=roles,
        identical=sum(same),
        pairs=len(same),
        unpushed=tuple(sorted((seen & {1, -1}) - set(roles.tolist()))),
    )


def _halves(alignment: Alignment) -> Pairs:
    rows = len(alignment.inputs)
    roles = np.where(np.arange(rows) < rows // 2, 1, -1).astype(np.int32)
    up, down = alignment.inputs[: rows // 2], alignment.inputs[rows // 2 :]
    same = [_bare(one) == _bare(other) for one, other in zip(up, down, strict=False)]
    names = ("the first half of the rows", "the second half")
    return Pairs(names, roles, sum(same), len(same), ())


def _rows(alignment: Alignment) -> list[Tokens]:
    return [row[:width] for row, width in zip(alignment.inputs, alignment.widths, strict=True)]


def _tokens(tokens: mx.array | None) -> Sequence[Tokens]:
    return [] if tokens is None else list(np.array(tokens).astype(np.int32))


def _role(row: Tokens, chosen: Sequence[Tokens], rejected: Sequence[Tokens]) -> int:
    """1 for a chosen row, -1 for a rejected one, 0 where it is part of neither or of both."""
    wanted = _bare(row)
    is_up, is_down = (
        any(_holds(one.tobytes(), wanted) for one in rows) for rows in (chosen, rejected)
    )
    return int(is_up) - int(is_down)


def _bare(row: Tokens) -> bytes:
    """A row without the run of one token that it ends with, as padding is one."""
    other = np.flatnonzero(row != row[-1]) if row.size else row
    length = int(other[-1]) + 1 if other.size else 0
    return row[: max(length, 1)].tobytes()


def _holds(row: bytes, wanted: bytes) -> bool:
    at = row.find(wanted)
    while at >= 0 and at % 4:
        at = row.find(wanted, at + 1)
    return at >= 0


def read_policy(
    trainer: Trainer, model: Any, calls: Calls, passes: Passes, alignment: Alignment
) -> Policy | None:
    """How the loss answers to its rewards; None where nothing speaks of rewards.

    Raises:
        InputError: the batch has no array of the name that the trainer gave.
    """
    found: BatchArray | None = None
    if callable(trainer.rewards):
        change: Callable[[float], Any] = trainer.rewards
    else:
        arrays = arrays_of(trainer.loss_fn, trainer.batch)
        found = (
            rewards_in(arrays)
            if trainer.rewards is None
            else named(arrays, trainer.rewards, "rewards")
        )
        if found is None:
            return None
        rewards = found
        change = lambda factor: times(trainer.batch, rewards, factor)  # noqa: E731
    labels = found is not None and is_label(found)
    # What is pushed is read at the same tokens each time, whatever else the loss has in it.
    targets = alignment.targets
    if not alignment.hard >= CLEAR:
        after = following(alignment.inputs)
        targets = np.where(alignment.trained & (after >= 0), after, targets)

    def pushed(factor: float) -> NDArray[np.float64]:
        loss = as_called(trainer.loss_fn, model, change(factor))
        calls.clear()
        loss(model)
        again = passes_of(loss, model, calls)
        known = len(again.logits) == len(passes.logits) and all(
            one.shape == other.shape for one, other in zip(again.logits, passes.logits, strict=True)
        )
        return summed(again) if known else np.full(groups.max(initial=-1) + 1, np.nan)

    groups = _answers(alignment)

    def summed(one: Passes) -> NDArray[np.float64]:
        return np.asarray(np.bincount(groups, pushes(one, alignment, targets)), np.float64)

    values = _per_row(found, int(groups.max(initial=-1)) + 1)
    flat = np.array(found.array).reshape(-1) if found is not None else values
    return Policy(
        name=found.name if found is not None else "rewards",
        labels=labels,
        rewards=values,
        pushes=summed(passes),
        reversed=pushed(-1.0),
        zeroed=None if labels else pushed(0.0),
        same=bool(flat.size and (flat == flat[0]).all()),
    )


def _answers(alignment: Alignment) -> NDArray[np.int64]:
    """Which answer each row is, int64 (rows,): the same one may be in several forward passes."""
    numbers: dict[tuple[bytes, int], int] = {}
    seen: Counter[tuple[int, bytes]] = Counter()
    found = []
    for row, forward in zip(_rows(alignment), alignment.forwards.tolist(), strict=True):
        tokens = row.tobytes()
        found.append(numbers.setdefault((tokens, seen[forward, tokens]), len(numbers)))
        seen[forward, tokens] += 1
    return np.array(found, np.int64)


def _per_row(rewards: BatchArray | None, rows: int) -> NDArray[np.float64]:
    if rewards is None:
        return np.zeros(0)
    values = np.array(rewards.array).astype(np.float64)
    if values.shape[:1] != (rows,):
        values = values.reshape(-1)
    if values.shape[:1] != (rows,):
        return np.zeros(0)
    return np.asarray(values.reshape(rows, -1).sum(axis=1))


def scores_of(calls: Calls) -> list[NDArray[np.float32] | None]:
    """The log probability of each token that follows, for each call: float32 (rows, positions)."""
    found: list[NDArray[np.float32] | None] = []
    for tokens, logits in zip(calls.inputs, calls.logits, strict=True):
        if tokens is None or tokens.shape != logits.shape[:2] or tokens.shape[1] < 2:
            found.append(None)
            continue
        plain = logits[:, :-1].astype(mx.float32)
        at = mx.take_along_axis(plain, tokens[:, 1:, None], axis=-1)[..., 0]
        found.append(np.array(at - mx.logsumexp(plain, axis=-1)))
    return found


def read_reference(passes: Passes, before: list[NDArray[np.float32] | None]) -> Reference | None:
    """Calls of the model itself that stand in for a reference; None where there is none."""
    pairs = _reference_calls(passes)
    if not pairs:
        return None
    differences = [_difference(before[own], before[other]) for own, other in pairs]
    return Reference(len(pairs), equal=max(differences) == 0)


def with_moves(
    reference: Reference,
    passes: Passes,
    before: list[NDArray[np.float32] | None],
    after: list[NDArray[np.float32] | None],
) -> Reference:
    """The same, with what the steps changed."""
    pairs = _reference_calls(passes)
    if len(before) != len(after):
        return reference
    moved = max(_difference(before[one], after[one]) for one, _ in pairs)
    policy = max(_difference(before[one], after[one]) for _, one in pairs)
    return Reference(reference.forwards, reference.equal, moved, policy)


def _reference_calls(passes: Passes) -> list[tuple[int, int]]:
    """Pairs of a call without a gradient and one with, over the same tokens."""
    trained = passes.readable
    found = []
    for number, tokens in enumerate(passes.inputs):
        if number in trained or tokens is None or tokens.shape[1] < 2:
            continue
        for other in trained:
            others = passes.inputs[other]
            if others is not None and _are_equal(tokens, others):
                found.append((number, other))
                break
    return found


def _are_equal(one: mx.array, other: mx.array) -> bool:
    return one.shape == other.shape and bool(mx.array_equal(one, other).item())


def _difference(one: NDArray[np.float32] | None, other: NDArray[np.float32] | None) -> float:
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    return float(np.abs(one - other).max(initial=0.0))
