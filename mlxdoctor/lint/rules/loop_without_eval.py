"""A training loop in which nothing is evaluated.

MLX is lazy: an update that is never evaluated makes the graph longer, step by step, until memory
is full. `mx.eval(model.parameters(), optimizer.state)` once a step, or reading the loss of the
next step with `.item()`, computes it; the former is what leaves no part behind.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

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
EVALUATED = (
    "mlx.core.eval",
    "mlx.core.async_eval",
    ".item",
    ".tolist",
    "float",
    "print",
    "numpy.array",
)


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=(".update(", "optim"))
def loop_without_eval(source: SourceFile) -> Hits:
    """An optimizer's update directly in a loop that evaluates nothing, nor calls what may; nor
    does a loop around it.
    """
    for update in source.calls(".update"):
        held = update.func.value if isinstance(update.func, ast.Attribute) else update
        loops = _loops_around(source, update)
        if "optim" in ast.unparse(held).lower() and len(update.args) == 2 and loops:
            # Text that is made of an array evaluates it.
            written = any(source.of(ast.FormattedValue, within=loops[-1]))
            if not written and not any(source.calls(*EVALUATED, through=loops[-1])):
                yield update, "nothing in this loop is evaluated: call mx.eval once a step"


def _loops_around(source: SourceFile, node: ast.AST) -> list[ast.AST]:
    """The loops of its function that a node is in, from the inside."""
    found: list[ast.AST] = []
    while not isinstance(node := source.parents[node], Function | ast.Module | ast.ClassDef):
        if isinstance(node, ast.For | ast.While):
            found.append(node)
    return found
