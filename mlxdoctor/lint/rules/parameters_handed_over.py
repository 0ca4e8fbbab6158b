"""Parameters handed to a loss that the file does not define.

`mx.value_and_grad(loss)(model.trainable_parameters(), ...)` learns only if the loss puts these
parameters into the model (`model.update(params)`) before it calls it. A loss that was written for a
model fails on the dict it gets; one that holds the model itself has a gradient of zero.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def train(model, optimizer, batches, compute_loss):
    step = mx.value_and_grad(compute_loss)
    for batch in batches:
        loss, grads = step(model.trainable_parameters(), batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters())
"""
GOOD = """
import mlx.core as mx
import mlx.nn as nn

def train(model, optimizer, batches, compute_loss):
    step = nn.value_and_grad(model, compute_loss)
    for batch in batches:
        loss, grads = step(model, batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters())
"""


@rule(
    severity=Severity.WARNING,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def parameters_handed_over(source: SourceFile) -> Hits:
    """The loss is a parameter of the function, and parameters are handed to its gradient."""
    for call in source.calls("mlx.core.value_and_grad", "mlx.core.grad"):
        loss = call.args[0] if call.args else None
        if not isinstance(loss, ast.Name) or not _is_handed_in(source, call, loss.id):
            continue
        uses = [use for use in source.uses_of(call) if use.args]
        if uses and all(source.are_parameters(use.args[0]) for use in uses):
            yield (
                call,
                f"{loss.id} is handed a dict of parameters: unless it puts them into the model "
                "(model.update), it cannot learn; nn.value_and_grad(model, loss) does",
            )


def _is_handed_in(source: SourceFile, node: ast.AST, name: str) -> bool:
    scope = source.scope(node)
    if not isinstance(scope, Function):
        return False
    return any(one.arg == name for one in (*scope.args.args, *scope.args.kwonlyargs))
