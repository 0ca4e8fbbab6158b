"""A result that is thrown away, of a function that changes nothing in place.

`optim.clip_grad_norm`, `optimizer.apply_gradients`, `mx.stop_gradient` and `tree_map` of MLX return
something new and leave what they are given as it is. Called on a line of their own they do nothing:
the gradients are not clipped, the weights are not updated.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn
import mlx.optimizers as optim

def step(model, optimizer, loss_fn, batch):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    optim.clip_grad_norm(grads, max_norm=1.0)
    optimizer.update(model, grads)
    return loss
"""
GOOD = """
import mlx.nn as nn
import mlx.optimizers as optim

def step(model, optimizer, loss_fn, batch):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    grads, norm = optim.clip_grad_norm(grads, max_norm=1.0)
    optimizer.update(model, grads)
    return loss
"""
#: What the result of each is for.
PURE = {
    "mlx.optimizers.clip_grad_norm": "it returns the clipped gradients and their norm",
    "mlx.core.stop_gradient": "it returns an array without a gradient",
    "mlx.core.clip": "it returns the clipped array",
    "mlx.core.where": "it returns a new array",
    "mlx.nn.average_gradients": "it returns the averaged gradients",
    "mlx.nn.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.compile": "it returns the compiled function",
}
UNFLATTENED = "mlx.utils.tree_unflatten"
#: How they are written; the frequent ones as a statement.
_WRITTEN = (
    "clip_grad_norm|average_gradients|value_and_grad|tree_unflatten|.apply_gradients"
    "|    mx.where(|    mx.clip(|    mx.compile(|    mx.stop_gradient("
)


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD, words=(_WRITTEN,))
def result_dropped(source: SourceFile) -> Hits:
    """The call is a statement by itself; of `apply_gradients`, where the name is an optimizer."""
    for node in source.of(ast.Expr):
        if not isinstance(node.value, ast.Call):
            continue
        call = node.value
        name = source.name_of(call.func)
        said = PURE.get(name)
        if name == UNFLATTENED:
            said = "it returns the tree"
        if said is None and isinstance(call.func, ast.Attribute) and _is_applied(source, call):
            said = "it returns the new parameters, and leaves the model as it is"
        if said is not None:
            yield call, f"the result of {ast.unparse(call.func)} is thrown away: {said}"


def _is_applied(source: SourceFile, call: ast.Call) -> bool:
    """`optimizer.apply_gradients(gradients, parameters)` of an MLX optimizer."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "apply_gradients":
        return False
    is_optimizer = "opt" in ast.unparse(call.func.value).lower()
    return is_optimizer and source.uses_mlx and len(call.args) == 2
