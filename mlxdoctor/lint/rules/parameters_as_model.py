"""What `parameters()` returns, used as the model.

It is a nested dict of arrays: it has no `forward`, no layers, and cannot be called. A loss that is
differentiated by it has to put it into the model first, as `nn.value_and_grad(model, loss)` does.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def step(model, batch):
    def loss_fn(params, batch):
        return params.forward(batch).mean()
    return mx.value_and_grad(loss_fn)(model.trainable_parameters(), batch)
"""
GOOD = """
import mlx.nn as nn

def step(model, batch):
    def loss_fn(model, batch):
        return model(batch).mean()
    return nn.value_and_grad(model, loss_fn)(model, batch)
"""
#: What a dict has; anything else asked of it is a module's.
OF_DICTS = frozenset({"get", "items", "keys", "values", "pop", "update", "setdefault", "copy"})


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def parameters_as_model(source: SourceFile) -> Hits:
    """A loss that calls its parameter, or asks it for attributes, and is handed a dict."""
    for call, function, name in source.differentiated():
        given = [use.args[0] for use in source.uses_of(call) if use.args]
        if given and all(source.are_parameters(one) for one in given):
            for node in _as_module(source, name, body(function)):
                yield (
                    node,
                    f"{name!r} is a nested dict of arrays here and no module: use "
                    "nn.value_and_grad(model, loss) and call the model",
                )
                break


def _as_module(source: SourceFile, name: str, statements: list[ast.AST]) -> Iterator[ast.AST]:
    for statement in statements:
        for one in source.of(ast.Name, within=statement):
            above = source.parents.get(one) if one.id == name else None
            called = isinstance(above, ast.Call) and above.func is one
            if called or (isinstance(above, ast.Attribute) and above.attr not in OF_DICTS):
                yield above or one
