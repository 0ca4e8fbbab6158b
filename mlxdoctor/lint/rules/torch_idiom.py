"""A training step as in PyTorch.

Arrays of MLX keep no gradient: there is no `loss.backward()`, no `optimizer.zero_grad()`, no
`requires_grad`. Gradients are what a function returns that `nn.value_and_grad` made, and the
optimizer is handed them. A module of MLX is called, `model(tokens)`: it has no `forward` unless a
class defines one, and those of mlx-lm do not.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, parameters

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
_OTHERS = frozenset(
    ("torch", "tensorflow", "tinygrad", "paddle", "jittor", "mindspore", "transformers", "keras")
)
#: Names that speak of arrays or gradients of the project's own.
_OWN = re.compile(r"(?!mlx\b).*(?:tensor|autograd|variable)|backward$")


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.failed", "step-forward.failed"))
def torch_idiom(source: SourceFile) -> Hits:
    """`.backward()` of what is called a loss, or `.requires_grad` that is set, with MLX alone; or
    `.forward()` of a loss's parameter called model, where no class of the file has that method.

    A file that imports torch, or defines or imports such things of its own, may mean those.
    """
    yield from _forward(source)
    defined = [made.name for made in source.of(ast.FunctionDef, ast.ClassDef)]
    imported = set(source.imports.values())
    packages = {name.partition(".")[0] for name in imported}
    if packages & _OTHERS or any(_OWN.match(name.lower()) for name in (*defined, *imported)):
        return
    for call in source.calls(".backward"):
        if not call.args and not call.keywords and "loss" in ast.unparse(call.func).lower():
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


def _forward(source: SourceFile) -> Hits:
    if any(method.name == "forward" for method in source.of(ast.FunctionDef)):
        return
    for call, loss in source.losses():
        function = source.function(loss)
        uses = [use for use in source.uses_of(call) if use.args]
        # Of parameters that are taken for a model another rule speaks.
        if function is None or any(source.are_parameters(use.args[0]) for use in uses):
            continue
        own = {"model", "m"} & set(parameters(function))
        for forward in source.calls(".forward", within=function):
            held = forward.func.value if isinstance(forward.func, ast.Attribute) else None
            if isinstance(held, ast.Name) and held.id in own:
                name = held.id
                yield forward, f"MLX's modules have no forward: call the model, {name}(...)"
                break
