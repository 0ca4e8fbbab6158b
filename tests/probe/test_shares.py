"""What of a batch comes to the optimizer in a step of one's own."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx import nn
from mlx.utils import tree_map

from mlxdoctor.evidence.kind import Missing
from mlxdoctor.measure.training_step.shares import shares_of
from mlxdoctor.measure.training_step.trainer import Trainer

WIDTH, VOCABULARY = 24, 40
#: (gradient of some rows, the batch, the count of calls) -> what the optimizer is given, or None.
Given = Callable[[Callable[..., Any], mx.array, mx.array, int], Any]


def loss(model: nn.Module, tokens: mx.array, mask: mx.array) -> mx.array:
    losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    return (losses * mask[:, 1:]).sum() / mask[:, 1:].sum()


def shares(given: Given, lengths: tuple[int, ...], dropout: float = 0.0) -> tuple[int, list[float]]:
    mx.random.seed(0)
    layers = nn.Embedding(VOCABULARY, 16), nn.Dropout(dropout), nn.Linear(16, VOCABULARY)
    model, optimizer = nn.Sequential(*layers), optim.Adam(1e-3)
    model.train()
    tokens = mx.random.randint(1, VOCABULARY, (len(lengths), WIDTH))
    mask = (mx.arange(WIDTH)[None] < mx.array(lengths)[:, None]).astype(mx.float32)
    gradient, calls = nn.value_and_grad(model, loss), [0]

    def step(model: nn.Module, tokens: mx.array, mask: mx.array) -> None:
        calls[0] += 1
        gradients = given(lambda *rows: gradient(model, *rows)[1], tokens, mask, calls[0])
        if gradients is not None:
            optimizer.update(model, gradients)

    before = model.parameters()
    count, parts = shares_of(Trainer(model, loss, (tokens, mask), step=step))
    assert all(
        map(
            mx.array_equal,
            *(dict(nn.utils.tree_flatten(each)).values() for each in (before, model.parameters())),
        )
    )
    assert optimizer.step.item() == 0
    return count, [round(part, 2) for part in parts]


def averaged(gradient: Any, tokens: mx.array, mask: mx.array, _: int) -> Any:
    """The mean of the means of the rows."""
    each = [gradient(tokens[i : i + 1], mask[i : i + 1]) for i in range(len(tokens))]
    return tree_map(lambda *parts: sum(parts) / len(parts), *each)


def test_rows_that_are_weighed_otherwise_are_there() -> None:
    plain = shares(lambda gradient, tokens, mask, _: gradient(tokens, mask), (20, 20, 20))
    assert plain == (1, [1.0, 1.0, 1.0])
    count, parts = shares(averaged, (2, 24))
    assert count == 1
    assert parts[0] > 1.0 > parts[1] > 0.1
    turned = shares(lambda g, x, m, _: tree_map(lambda part: -part, g(x, m)), (20, 20))
    assert turned == (1, [1.0, 1.0])


def test_a_row_that_is_left_out_has_its_own_number() -> None:
    _, parts = shares(
        lambda gradient, x, m, _: gradient(x[[0, 1, 3]], m[[0, 1, 3]]), (20, 20, 20, 20)
    )
    assert parts[2] == 0.0
    assert min(parts[:2] + parts[3:]) > 0.5


@pytest.mark.parametrize(
    ("every", "lengths", "why"), [(3, (20, 20), "takes 3 calls"), (99, (20, 20), "make no update")]
)
def test_calls_that_are_too_many(every: int, lengths: tuple[int, ...], why: str) -> None:
    def rarely(gradient: Any, tokens: mx.array, mask: mx.array, calls: int) -> Any:
        return None if calls % every else gradient(tokens, mask)

    with pytest.raises(Missing, match=why):
        shares(rarely, lengths)


def test_what_cannot_be_told() -> None:
    with pytest.raises(Missing, match="1 rows of tokens"):
        shares(averaged, (20,))
    with pytest.raises(Missing, match="more than the sum"):
        shares(averaged, (20, 20, 20), dropout=0.5)
    with pytest.raises(Missing, match="zero or not finite"):
        shares(lambda gradient, x, m, _: tree_map(lambda g: g * math.nan, gradient(x, m)), (20, 20))
