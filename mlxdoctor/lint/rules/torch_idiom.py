"""A training step as in PyTorch.

Arrays of MLX keep no gradient: there is no `loss.backward()`, no `optimizer.zero_grad()`, no
`requires_grad`. Gradients are what a function returns that `nn.value_and_grad` made, and the
optimizer is handed them.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.names import is_mlx
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def step(model, optimizer, loss_fn, inputs, targets):
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""
GOOD = """
import mlx.core as mx
import mlx.nn as nn

def step(model, optimizer, loss_fn, inputs, targets):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, inputs, targets)
    optimizer.update(model, grads)
    mx.eval(model.parameters(), optimizer.state)
"""
#: Packages whose arrays have these methods; a file that imports one may well mean its arrays.
OTHERS = frozenset(
    ("torch", "tensorflow", "tinygrad", "paddle", "jittor", "mindspore", "transformers", "keras")
)
#: Names that speak of arrays or gradients of the project's own.
_OWN = ("tensor", "autograd", "variable")


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("backward()|requires_grad",),
)
def torch_idiom(source: SourceFile) -> Hits:
    """`.backward()` of what is called a loss, or `.requires_grad` that is set, with MLX alone.

    A file that imports torch, or defines or imports such things of its own, may mean those.
    """
    imported = {name.split(".")[0] for name in source.imports.values()}
    if imported & OTHERS or _has_its_own(source):
        return
    for call in source.calls(".backward"):
        held = call.func.value if isinstance(call.func, ast.Attribute) else call
        if not call.args and not call.keywords and "loss" in ast.unparse(held).lower():
            yield (
                call,
                "MLX has no backward(): nn.value_and_grad(model, loss_fn) returns loss and "
                "gradients",
            )
            return
    for node in source.of(ast.Attribute):
        is_set = node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)
        if is_set and isinstance(node.value, ast.Name) and node.value.id != "self":
            yield node, "MLX has no requires_grad: use model.freeze() and model.unfreeze()"
            return


def _has_its_own(source: SourceFile) -> bool:
    defined = {one.name for one in source.of(ast.FunctionDef, ast.ClassDef)}
    if "backward" in defined:
        return True
    names = [*defined, *(name for name in source.imports.values() if not is_mlx(name))]
    return any(word in name.lower() for name in names for word in _OWN)
