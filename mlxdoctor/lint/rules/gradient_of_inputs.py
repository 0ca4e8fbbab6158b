"""A loss differentiated by the batch, and the model updated with that.

`mx.value_and_grad` goes by the first argument. Where that is the batch, what comes back is the
gradient by the inputs: it has nothing of the model's parameters in it, and tokens, being whole
numbers, have none at all. `nn.value_and_grad(model, loss)` goes by the model's parameters.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

class Trainer:
    def loss(self, tokens, targets):
        return self.score(self.model(tokens), targets)

    def step(self, tokens, targets):
        loss, grads = mx.value_and_grad(self.loss)(tokens, targets)
        self.optimizer.update(self.model, grads)
        return loss
"""
GOOD = """
import mlx.nn as nn

class Trainer:
    def loss(self, tokens, targets):
        return self.score(self.model(tokens), targets)

    def step(self, tokens, targets):
        loss, grads = nn.value_and_grad(self.model, self.loss)(tokens, targets)
        self.optimizer.update(self.model, grads)
        return loss
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-gradients.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def gradient_of_inputs(source: SourceFile) -> Hits:
    """What is differentiated by goes into the model's call, and the gradient into its update."""
    for call, function, name in source.differentiated():
        if any(
            _updates_model(source, use) and _is_input(source, name, body(function))
            for use in source.uses_of(call)
        ):
            yield (
                call,
                f"the gradient is by {name!r}, which is the model's input: use "
                "nn.value_and_grad(model, loss)",
            )


def _is_input(source: SourceFile, name: str, statements: list[ast.AST]) -> bool:
    """Whether a model is called with the name itself."""
    return any(
        ast.unparse(node.func) in {"model", "self.model"}
        and any(isinstance(one, ast.Name) and one.id == name for one in node.args)
        for statement in statements
        for node in source.of(ast.Call, within=statement)
    )


def _updates_model(source: SourceFile, use: ast.Call) -> bool:
    """Whether the gradients of this call are given to an optimizer, with a model."""
    for update in source.calls(".update", within=source.scope(use)):
        if len(update.args) != 2 or ast.unparse(update.args[0]) not in {"model", "self.model"}:
            continue
        for one in source.values(update.args[1]):
            if isinstance(one, ast.Subscript) and one.value is use and constant(one.slice) == 1:
                return True
    return False
