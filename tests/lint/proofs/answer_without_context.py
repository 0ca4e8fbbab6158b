"""After the first answer token the model is given one token at a time."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = [2, 1, 1], [2, 3, 4]


def observe(example: ModuleType) -> list[int]:
    """How many tokens the model was given at a time, of a prompt of two."""
    lengths: list[int] = []

    def model(tokens: mx.array) -> mx.array:
        lengths.append(tokens.shape[1])
        return mx.zeros((1, tokens.shape[1], 8))

    example.generate(model, [3, 5], 2)
    return lengths
