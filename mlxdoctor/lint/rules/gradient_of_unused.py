"""A loss that never uses what it is differentiated by.

Where the loss holds the model itself and computes with it, the parameters it is handed are never
read: the gradient with respect to them is exactly zero, and nothing is learned.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile

BAD = """
import mlx.core as mx

def step(model, batch):
    def loss_fn(params, batch):
        return model(batch).mean()
    return mx.value_and_grad(loss_fn)(model.trainable_parameters(), batch)
"""
GOOD = """
import mlx.nn as nn

def step(model, batch):
    def loss_fn(batch):
        return model(batch).mean()
    return nn.value_and_grad(model, loss_fn)(batch)
"""


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.nothing-changed",))
def gradient_of_unused(source: SourceFile) -> Hits:
    """The differentiated parameter does not appear in the body."""
    for call, function, name in source.differentiated():
        if not {name, "locals"} & source.names_in(function) and not _is_stub(function):
            yield (
                call,
                f"the loss never uses {name!r}, by which it is differentiated: the gradient is "
                "zero",
            )


def _is_stub(function: Function) -> bool:
    """A stub says nothing about what it will do."""
    return not isinstance(function, ast.Lambda) and all(
        isinstance(statement, ast.Pass | ast.Raise)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in function.body
    )
