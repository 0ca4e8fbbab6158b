"""`mx.value_and_grad` or `mx.grad` of a loss that calls the model it is given.

These two differentiate with respect to arrays in plain containers. A module is turned into a dict
of its parameters on the way, and calling that fails, or what is differentiated is not what the
model computes with. `nn.value_and_grad(model, loss)` is made for modules: it puts the parameters
into the model, and gives gradients for those that are trainable.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, inputs, targets):
    return mx.value_and_grad(loss_fn)(model, inputs, targets)
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, inputs, targets):
    return nn.value_and_grad(model, loss_fn)(model, inputs, targets)
"""


@rule(severity=Severity.ERROR, symptom="step-update.failed", bad=BAD, good=GOOD)
def gradient_of_module(source: SourceFile) -> Hits:
    """The differentiated parameter is called in the loss."""
    for call, function, name in source.differentiated():
        if _is_called(name, body(function)):
            yield (
                call,
                f"the loss calls its parameter {name!r}, which here is a dict of arrays "
                f"and no module: use nn.value_and_grad(model, loss)",
            )


def _is_called(name: str, statements: list[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for statement in statements
        for node in ast.walk(statement)
    )
