"""A loss that never uses what it is differentiated by.

Where the loss holds the model itself and computes with it, the parameters it is handed are never
read: the gradient with respect to them is exactly zero, and nothing is learned.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body
from mlxdoctor.lint.rule import Hits, rule

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


@rule(
    severity=Severity.ERROR,
    symptom="step-update.nothing-changed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def gradient_of_unused(source: SourceFile) -> Hits:
    """The differentiated parameter does not appear in the body."""
    for call, function, name in source.differentiated():
        used = {one.id for part in body(function) for one in source.of(ast.Name, within=part)}
        if name not in used and "locals" not in used and not _is_empty(function):
            yield (
                call,
                f"the loss never uses {name!r}, by which it is differentiated: the "
                f"gradient is zero",
            )


def _is_empty(function: ast.AST) -> bool:
    """A stub says nothing about what it will do."""
    statements = getattr(function, "body", None)
    return isinstance(statements, list) and all(
        isinstance(one, ast.Pass | ast.Raise)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in statements
    )
