"""Whatever the coefficient, the step is the same."""

from types import ModuleType

import mlx.core as mx
import mlx.optimizers as optim

from tests.lint.tiny import TOKENS, TinyModel

BAD, GOOD = True, False


def observe(example: ModuleType) -> bool:
    found = []
    for beta in (0.0, 5.0):
        mx.random.seed(0)
        trainer = example.Trainer(TinyModel(), optim.SGD(0.1), beta=beta)
        trainer.step(TOKENS, mx.array([-9.0, -9.5]), mx.array([1.0, -1.0]))
        found.append(trainer.model.head.weight)
    return bool(mx.array_equal(*found))
