"""A loss that has lost its gradient: made anew from a number, or behind a stop_gradient.

`.item()`, `float(...)` and NumPy take an array's value out of the computation. Put back with
`mx.array(...)`, it is a constant: `value_and_grad` finds nothing it depends on, all gradients are
zero, and the loss stays where it is. Return the array. The same holds for logits that went through
`mx.stop_gradient` on their way into the only loss.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import losses, parts, returned
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    loss = nn.losses.cross_entropy(model(inputs), targets, reduction="mean")
    return mx.array(loss.item())

def step(model, inputs, targets):
    return nn.value_and_grad(model, loss_fn)(model, inputs, targets)
"""
GOOD = BAD.replace("mx.array(loss.item())", "loss").replace("import mlx.core as mx\n", "")
OUT = (".item", ".tolist", "float", "numpy.array", "numpy.asarray", "numpy.mean")


@rule(
    severity=Severity.ERROR,
    symptom="step-gradients.none",
    bad=BAD,
    good=GOOD,
    words=("loss", "array(|stop_gradient"),
)
def loss_rebuilt(source: SourceFile) -> Hits:
    """A differentiated function all of whose returns are `mx.array` of a value taken out."""
    yield from _detached(source)
    seen: set[Function] = set()
    for _, loss in losses(source):
        function = source.function_named(loss)
        if function is None or function in seen:
            continue
        seen.add(function)
        ends = [_first(one) for one in returned(source, function)]
        rebuilt = [one for one in ends if _is_rebuilt(source, one)]
        if rebuilt and len(rebuilt) == len(ends):
            yield rebuilt[0], "this is a constant: the value was taken out of the computation"


def _detached(source: SourceFile) -> Hits:
    """Functions called a loss, all of whose cross-entropies are of logits without a gradient."""
    for function in source.of(ast.FunctionDef):
        if "loss" not in function.name.lower():
            continue
        calls = list(source.calls("mlx.nn.losses.cross_entropy", within=function))
        stopped = [one for one in calls if one.args and _is_stopped(source, one.args[0])]
        if stopped and len(stopped) == len(calls):
            yield stopped[0], "these logits have no gradient: stop_gradient keeps it from the model"


def _is_stopped(source: SourceFile, node: ast.expr) -> bool:
    """Whether the policy's own logits were cut off; a reference's are meant to be."""
    node = source.values(node)[0]
    while isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("astype", "reshape")
    ):
        held = node.value if isinstance(node, ast.Subscript) else node.func
        node = source.values(held.value if isinstance(held, ast.Attribute) else held)[0]
    if not source.is_call(node, "mlx.core.stop_gradient"):
        return False
    said = ast.unparse(node).lower()
    return "model(" in said and not any(one in said for one in ("ref", "teacher", "old"))


def _first(node: ast.expr) -> ast.expr:
    return node.elts[0] if isinstance(node, ast.Tuple) and node.elts else node


def _is_rebuilt(source: SourceFile, node: ast.expr) -> bool:
    values = source.values(node)
    return all(
        source.is_call(one, "mlx.core.array")
        and bool(one.args)
        and any(source.is_call(each, *OUT) for each in parts(source, one.args[0]))
        for one in values
    )
