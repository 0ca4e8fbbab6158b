"""A training loop in which nothing is evaluated.

MLX is lazy: an update that is never evaluated makes the graph longer, step by step, until memory
is full. `mx.eval(model.parameters(), optimizer.state)` once a step, or reading the loss of the
next step with `.item()`, computes it; the former is what leaves no part behind.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.core as mx

def train(model, optimizer, loss_and_grad, batches):
    for batch in batches:
        loss, grads = loss_and_grad(model, batch)
        optimizer.update(model, grads)
"""
GOOD = BAD + "        mx.eval(model.parameters(), optimizer.state)\n"
#: Calls after which something has been computed.
_EVALUATING = (
    "mlx.core.eval", "mlx.core.async_eval", ".item", ".tolist", "float", "print", "numpy.array",
)  # fmt: skip


@rule(Severity.WARNING, BAD, GOOD)
def loop_without_eval(source: SourceFile) -> Hits:
    """An optimizer's update directly in a loop that evaluates nothing, nor calls what may; nor
    does a loop around it.
    """
    for update in source.updates():
        outermost, loop = None, source.enclosing(update, ast.For, ast.While)
        while loop is not None:
            outermost, loop = loop, source.enclosing(loop, ast.For, ast.While)
        if outermost is None or "optim" not in ast.unparse(update.func).lower():
            continue
        # Text that is made of an array evaluates it.
        written = any(source.of(ast.FormattedValue, within=outermost))
        if not written and not any(source.calls(*_EVALUATING, through=outermost)):
            yield update, "nothing in this loop is evaluated: call mx.eval once a step"
