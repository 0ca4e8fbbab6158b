"""An optimizer that is made anew at each step.

Adam keeps moving averages of the gradient, and a schedule counts steps: both are in the optimizer.
One that is made in the loop begins again each time. Its steps are those of a first step, as large
for a parameter with a tiny gradient as for one with a large one, and a warm-up never ends.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.rules.adapter_without_freeze import OPTIMIZERS

BAD = """
import mlx.core as mx
import mlx.optimizers as optim

def train(model, step, batches):
    for batch in batches:
        optimizer = optim.Adam(learning_rate=1e-4)
        loss, grads = step(model, batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
"""
GOOD = """
import mlx.core as mx
import mlx.optimizers as optim

def train(model, step, batches):
    optimizer = optim.Adam(learning_rate=1e-4)
    for batch in batches:
        loss, grads = step(model, batch)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
"""


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD, words=("optim", ".update("))
def optimizer_remade(source: SourceFile) -> Hits:
    """Made in the innermost loop that updates with it, and not under a condition there."""
    for made in source.calls(*OPTIMIZERS):
        above = source.parents.get(made)
        if not (isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name)):
            continue
        loop = source.parents.get(above)
        if not isinstance(loop, ast.For | ast.While) or above not in loop.body:
            continue
        name = above.targets[0].id
        for update in source.calls(".update", within=loop):
            held = update.func.value if isinstance(update.func, ast.Attribute) else None
            is_it = isinstance(held, ast.Name) and held.id == name
            if is_it and _innermost(source, update) is loop:
                yield made, f"{name} is made anew at each step: make it before the loop"
                break


def _innermost(source: SourceFile, node: ast.AST) -> ast.AST | None:
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.For | ast.While | ast.FunctionDef):
        above = source.parents.get(above)
    return above
