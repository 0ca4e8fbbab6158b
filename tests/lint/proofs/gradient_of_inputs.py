"""Tokens have no gradient: the step fails; by the model's parameters it changes the model."""

from types import ModuleType

import mlx.optimizers as optim
from mlx import nn

from tests.lint.tiny import TOKENS, TinyModel, changed, raised, weights

BAD, GOOD = ("ValueError", False), ("", True)


def observe(example: ModuleType) -> tuple[str, bool]:
    trainer = example.Trainer()
    trainer.model, trainer.optimizer = TinyModel(), optim.SGD(0.1)
    trainer.score = lambda logits, targets: nn.losses.cross_entropy(logits, targets).mean()
    before = weights(trainer.model)
    error = raised(lambda: trainer.step(TOKENS[:, :-1], TOKENS[:, 1:]))
    return error, bool(changed(trainer.model, before))
