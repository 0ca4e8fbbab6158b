"""`mx.value_and_grad` or `mx.grad` with respect to a model.

These two go by everything that a module holds. A model that holds more than arrays, as those of
mlx-lm do, is refused ("should contain only arrays"). Of any other they give a gradient for every
parameter, frozen or not, and an update with these changes the base model too.
`nn.value_and_grad(model, loss)` is made for modules: it goes by what is trainable.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body, names_in
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
    """The differentiated parameter is called in the loss, or a model is handed over for it."""
    for call, function, name in source.differentiated():
        given = [use.args[0] for use in source.uses_of(call) if use.args]
        if any(source.are_parameters(one) for one in given):
            continue
        used = set[str]().union(*(names_in(one) for one in body(function)))
        handed = name in used and any(_is_model(one) for one in given)
        if handed or _is_called(name, body(function)):
            yield (
                call,
                f"the gradient is by all that {name!r} holds, frozen or not, and fails where that "
                "is more than arrays: use nn.value_and_grad(model, loss)",
            )


def _is_called(name: str, statements: list[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for statement in statements
        for node in ast.walk(statement)
    )


def _is_model(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last == "model" or last.endswith("_model")
