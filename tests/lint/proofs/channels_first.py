"""The convolution refuses the channels in second place."""

from types import ModuleType

import mlx.core as mx

from tests.lint.tiny import raised

BAD, GOOD = "ValueError", ""


def observe(example: ModuleType) -> str:
    return raised(lambda: mx.eval(example.Encoder()(mx.ones((2, 10)))))
