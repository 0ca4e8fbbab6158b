"""What `parameters()` returns, used as the model.

It is a nested dict of arrays: it has no `forward`, no layers, and cannot be called. A loss that is
differentiated by it has to put it into the model first (`model.update(params)`), as
`nn.value_and_grad(model, loss)` does. A loss that was written for a model fails on the dict.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile

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
_OF_DICTS = frozenset({"get", "items", "keys", "values", "pop", "update", "setdefault", "copy"})


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.failed",))
def parameters_as_model(source: SourceFile) -> Hits:
    """A loss that calls its parameter, or asks it for attributes, and is handed a dict; or a loss
    that the function is handed itself.
    """
    for call, loss in source.losses("mlx.core.value_and_grad", "mlx.core.grad"):
        given = [use.args[0] for use in source.uses_of(call) if use.args]
        if not given or not all(source.are_parameters(argument) for argument in given):
            continue
        for function, name in ((f, n) for made, f, n in source.differentiated() if made is call):
            for node in _as_module(source, name, function):
                yield (
                    node,
                    f"{name!r} is a nested dict of arrays here and no module: use "
                    "nn.value_and_grad(model, loss) and call the model",
                )
                break
        if isinstance(loss, ast.Name) and _is_handed_in(source, loss):
            yield (
                call,
                f"{loss.id} is handed a dict of parameters: unless it puts them into the model "
                "(model.update), it cannot learn; nn.value_and_grad(model, loss) does",
            )


def _as_module(source: SourceFile, name: str, function: Function) -> Iterator[ast.AST]:
    for used in source.of(ast.Name, within=function):
        parent = source.parent(used) if used.id == name else None
        called = isinstance(parent, ast.Call) and parent.func is used
        if called or (isinstance(parent, ast.Attribute) and parent.attr not in _OF_DICTS):
            yield parent or used


def _is_handed_in(source: SourceFile, loss: ast.Name) -> bool:
    """Whether a name is a parameter of the function that uses it."""
    given = source.given(loss)
    return bool(given) and all(isinstance(binding.node, ast.arg) for binding in given)
