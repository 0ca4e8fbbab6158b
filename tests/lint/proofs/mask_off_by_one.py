"""The loss of a padded row depends on what is predicted after its last token."""

from types import ModuleType

import mlx.core as mx

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    """Whether the gradient reaches the logits at a row's last token, whose target is padding."""
    tokens, lengths = mx.array([[3, 5, 2, 0, 0]]), mx.array([3])

    def loss(logits: mx.array) -> mx.array:
        return example.loss_fn(lambda inputs: logits, tokens, lengths)

    gradient = mx.grad(loss)(mx.zeros((1, 4, 8)))
    trained = [bool(mx.any(gradient[0, place] != 0)) for place in range(4)]
    assert trained[:2] == [True, True]
    return trained[2]
