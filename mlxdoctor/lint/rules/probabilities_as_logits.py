"""Probabilities given to a loss that takes logits, or logits to one that takes log-probabilities.

`nn.losses.cross_entropy` applies the softmax itself, `nn.losses.binary_cross_entropy` the sigmoid
unless it is told `with_logits=False`. Applied twice, the distribution is nearly flat whatever the
model says: the loss cannot fall far below that of a guess, and the gradient is small. Given
logits, `nll_loss` and `kl_div_loss` are no losses at all, and fall without end.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import resolved, returned
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    probabilities = mx.softmax(model(inputs), axis=-1)
    return nn.losses.cross_entropy(probabilities, targets, reduction="mean")
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")
"""
SOFTMAX = ("mlx.core.softmax", "mlx.nn.softmax", "mlx.nn.Softmax")
LOG_SOFTMAX = ("mlx.nn.log_softmax", "mlx.nn.LogSoftmax")
SIGMOID = ("mlx.core.sigmoid", "mlx.nn.sigmoid", "mlx.nn.Sigmoid")


@rule(
    severity=Severity.ERROR,
    symptom="step-forward.above-uniform",
    bad=BAD,
    good=GOOD,
    words=("cross_entropy|nll_loss|kl_div_loss",),
)
def probabilities_as_logits(source: SourceFile) -> Hits:
    """A softmax or sigmoid whose result goes into a loss that has its own, or none where one is
    needed; models of this file that end in one included.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if call.args and _is_last(source, call.args[0], SOFTMAX):
            yield call, "cross_entropy applies the softmax itself: give it the logits"
    for call in source.calls("mlx.nn.losses.binary_cross_entropy"):
        raw = constant(keyword(call, "with_logits")) is not False and len(call.args) < 4
        if raw and call.args and _is_last(source, call.args[0], SIGMOID):
            yield (
                call,
                "binary_cross_entropy applies the sigmoid itself: give it the logits, or "
                "with_logits=False",
            )
    for call in source.calls("mlx.nn.losses.nll_loss", "mlx.nn.losses.kl_div_loss"):
        if call.args and _is_last(source, call.args[0], SOFTMAX):
            name = source.name_of(call.func).rpartition(".")[2]
            yield call, f"{name} takes log-probabilities: nn.log_softmax in place of the softmax"


def _is_last(source: SourceFile, node: ast.expr, names: tuple[str, ...], depth: int = 6) -> bool:
    """Whether the last thing done to a value is one of these functions."""
    node = resolved(source, node)
    if isinstance(node, ast.Subscript):
        return depth > 0 and _is_last(source, node.value, names, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    if source.is_call(node, *names):
        return True
    if isinstance(node.func, ast.Call):
        return source.is_call(node.func, *names)
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("astype", "reshape", "squeeze"):
        return depth > 0 and _is_last(source, node.func.value, names, depth - 1)
    made = _class_of(source, node.func)
    if made is None or not depth:
        return False
    ends = [
        value
        for one in made.body
        if isinstance(one, ast.FunctionDef) and one.name == "__call__"
        for value in returned(source, one)
    ]
    return bool(ends) and all(_is_last(source, one, names, depth - 1) for one in ends)


def _class_of(source: SourceFile, node: ast.expr) -> ast.ClassDef | None:
    """The class in this file of the model that is called, where only one class is a model."""
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    if last != "model":
        return None
    made = [
        one
        for one in source.of(ast.ClassDef)
        if any(source.is_named(base, "mlx.nn.Module") for base in one.bases)
    ]
    return made[0] if len(made) == 1 else None
