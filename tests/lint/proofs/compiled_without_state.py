"""After a compiled step the model's weights cannot be read, or are trained."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel, changed, loss_fn, raised, weights

BAD, GOOD = ("RuntimeError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    model, optimizer = TinyModel(), optim.SGD(0.1)
    before = weights(model)
    step = example.make_step(model, optimizer, lambda x, y: loss_fn(model, x, y))
    first = step(TOKENS[:, :-1], TOKENS[:, 1:]).item()
    losses = {first, step(TOKENS[:, :-1], TOKENS[:, 1:]).item()}
    error = raised(lambda: mx.eval(model.parameters()))
    return error, not error and bool(changed(model, before)) and len(losses) == 2
