"""Two evaluations of the same weights differ."""

from collections.abc import Iterator
from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether dropout is on in an evaluation within the training."""
    model, modes = example.Classifier(), []
    evaluate = example.evaluate

    def watched(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        modes.append(model.training)
        return evaluate(model, x, y)

    def loss_fn(model: nn.Module, x: mx.array, y: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(x), y, reduction="mean")

    def batches() -> Iterator[tuple[mx.array, mx.array]]:
        for _ in range(2):
            yield mx.ones((4, 8)), mx.array([0, 1, 0, 1])

    vars(example)["evaluate"] = watched
    example.train(model, optim.SGD(0.1), loss_fn, batches())
    return all(modes)
