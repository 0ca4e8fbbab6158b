"""A training step as in PyTorch.

Arrays of MLX keep no gradient: there is no `loss.backward()`, no `optimizer.zero_grad()`, no
`requires_grad`. Gradients are what a function returns that `nn.value_and_grad` made, and the
optimizer is handed them.
"""

import ast

from mlxdoctor.finding import Severity
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
OTHERS = ("torch", "tensorflow", "tinygrad", "paddle", "jittor", "mindspore", "transformers")


@rule(severity=Severity.ERROR, symptom="step-update.failed", bad=BAD, good=GOOD)
def torch_idiom(source: SourceFile) -> Hits:
    """`.backward()` without arguments or `.requires_grad`, where MLX is imported and no torch."""
    imported = {name.split(".")[0] for name in source.imports.values()}
    if "mlx" not in imported or imported & set(OTHERS):
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "backward" and not node.args and not node.keywords:
                yield (
                    node,
                    "MLX has no backward(): nn.value_and_grad(model, loss_fn) returns loss and "
                    "gradients",
                )
                return
        elif isinstance(node, ast.Attribute) and node.attr == "requires_grad":
            yield node, "MLX has no requires_grad: use model.freeze() and model.unfreeze()"
            return
