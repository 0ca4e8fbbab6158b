"""A result that is thrown away, of a function that changes nothing in place.

`optim.clip_grad_norm`, `optimizer.apply_gradients`, `mx.stop_gradient` and `tree_map` of MLX return
something new and leave what they are given as it is. Called on a line of their own they do nothing:
the gradients are not clipped, the weights are not updated.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.nn as nn
import mlx.optimizers as optim

def step(model, optimizer, loss_fn, batch):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    optim.clip_grad_norm(grads, max_norm=1.0)
    optimizer.update(model, grads)
    return loss
"""
GOOD = BAD.replace("    optim.clip", "    grads, norm = optim.clip")
#: What the result of each is for.
_PURE = {
    "mlx.optimizers.clip_grad_norm": "it returns the clipped gradients and their norm",
    "mlx.core.stop_gradient": "it returns an array without a gradient",
    "mlx.core.clip": "it returns the clipped array",
    "mlx.core.where": "it returns a new array",
    "mlx.nn.average_gradients": "it returns the averaged gradients",
    "mlx.nn.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.compile": "it returns the compiled function",
    "mlx.utils.tree_unflatten": "it returns the tree",
}


@rule(Severity.ERROR, BAD, GOOD)
def result_dropped(source: SourceFile) -> Hits:
    """The call is a statement by itself; of `apply_gradients`, where the name is an optimizer."""
    for statement in source.of(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call):
            continue
        written = ast.unparse(call.func)
        result = _PURE.get(source.name_of(call.func))
        is_applied = written.endswith(".apply_gradients") and "opt" in written.lower()
        if is_applied and len(call.args) == 2:
            result = "it returns the new parameters, and leaves the model as it is"
        if result is not None:
            yield call, f"the result of {written} is thrown away: {result}"
