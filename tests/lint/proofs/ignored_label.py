"""What was to be ignored has a gradient."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = [True, True, True], [False, True, True]


def observe(example: ModuleType) -> list[bool]:
    """Which positions are trained, of a prompt of two tokens and an answer of two."""
    inputs, labels = (mx.array([one]) for one in example.row([3, 5], [2, 7]))

    def loss(logits: mx.array) -> mx.array:
        return example.loss_fn(lambda _: logits, inputs, labels)

    gradient = mx.grad(loss)(mx.zeros((1, 4, 200)))
    return [bool(mx.any(gradient[0, place] != 0)) for place in range(3)]
