"""A sample whose advantage is negative is made likelier."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether a step down the gradient raises the log-probability of a punished sample."""
    logprobs = mx.full((1, 20), -3.0)
    gradient = mx.grad(example.policy_loss)(logprobs, logprobs, mx.array([-1.0]))
    return bool(mx.all(gradient < 0))
