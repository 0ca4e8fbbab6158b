"""A training loop in which nothing is evaluated.

MLX is lazy: an update that is never evaluated makes the graph longer, step by step, until memory
is full. `mx.eval(model.parameters(), optimizer.state)` once a step, or reading the loss of the
next step with `.item()`, computes it; the former is what leaves no part behind.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def train(model, optimizer, loss_and_grad, batches):
    for batch in batches:
        loss, grads = loss_and_grad(model, batch)
        optimizer.update(model, grads)
"""
GOOD = """
import mlx.core as mx

def train(model, optimizer, loss_and_grad, batches):
    for batch in batches:
        loss, grads = loss_and_grad(model, batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
"""
#: Calls after which something has been computed.
EVALUATED = ("mlx.core.eval", "mlx.core.async_eval", ".item", ".tolist", "float", "print")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD)
def loop_without_eval(source: SourceFile) -> Hits:
    """An optimizer's update directly in a loop that evaluates nothing, nor calls what may."""
    for loop in source.nodes:
        if not isinstance(loop, ast.For | ast.While):
            continue
        updates = [
            call
            for call in source.calls(".update", within=loop)
            if isinstance(call.func, ast.Attribute)
            and "optim" in ast.unparse(call.func.value).lower()
            and source.scope(call) is source.scope(loop)
        ]
        if updates and not any(source.calls(*EVALUATED, within=loop)) and not _may(source, loop):
            yield updates[0], "nothing in this loop is evaluated: call mx.eval once a step"


def _may(source: SourceFile, loop: ast.AST) -> bool:
    """Whether a function of this file that is called in the loop evaluates."""
    called = [
        source.function_named(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)
    ]
    return any(any(source.calls(*EVALUATED, within=one)) for one in called if one is not None)
