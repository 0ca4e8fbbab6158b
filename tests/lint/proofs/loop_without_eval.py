"""What is left to compute grows with every step."""

from io import StringIO
from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn

from tests.lint.tiny import TOKENS, TinyModel, loss_fn

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    return pending(example, 4) > 2 * pending(example, 1)


def pending(example: ModuleType, steps: int) -> int:
    """How many operations the weights still wait for after so many steps."""
    model = TinyModel()
    mx.eval(model.parameters())
    step = nn.value_and_grad(model, loss_fn)
    batches = [TOKENS] * steps
    example.train(
        model, optim.SGD(0.1), lambda model, one: step(model, one[:, :-1], one[:, 1:]), batches
    )
    graph = StringIO()
    mx.export_to_dot(graph, model.head.weight)
    return graph.getvalue().count("->")
