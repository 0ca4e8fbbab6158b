"""A step with gradients of norm far above 1 moves the weights by more than the rate."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel, loss_fn, weights

BAD, GOOD = False, True


def observe(example: ModuleType) -> bool:
    """Whether the norm of the gradient that the optimizer got is 1."""
    model = TinyModel()
    before = weights(model)

    def large(model: TinyModel, tokens: mx.array) -> mx.array:
        return 1000 * loss_fn(model, tokens[:, :-1], tokens[:, 1:])

    example.step(model, optim.SGD(1.0), large, TOKENS)
    after = weights(model)
    squares = [mx.sum((after[name] - value) ** 2) for name, value in before.items()]
    return abs(mx.sqrt(sum(squares)).item() - 1) < 0.01
