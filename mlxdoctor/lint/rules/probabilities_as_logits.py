"""Probabilities given to a loss that takes logits, or to one that takes log-probabilities.

`nn.losses.cross_entropy` applies the softmax itself, `nn.losses.binary_cross_entropy` the sigmoid
unless it is told `with_logits=False`. Applied twice, the distribution is nearly flat whatever the
model says: the loss cannot fall far below that of a guess, and the gradient is small. `nll_loss`
and `kl_div_loss` take log-probabilities, and fall without end where they are given something else.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, keyword

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
#: Loss -> what must not come last before it, and why.
_LOSSES = {
    "cross_entropy": ("softmax", "applies the softmax itself: give it the logits"),
    "binary_cross_entropy": (
        "sigmoid",
        "applies the sigmoid itself: give it the logits, or with_logits=False",
    ),
    "nll_loss": ("softmax", "takes log-probabilities: nn.log_softmax in place of the softmax"),
    "kl_div_loss": ("softmax", "takes log-probabilities: nn.log_softmax in place of the softmax"),
}
_DEPTH = 6


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-forward.above-uniform",))
def probabilities_as_logits(source: SourceFile) -> Hits:
    """A softmax or sigmoid whose result goes into a loss that has its own, models of this file that
    end in one included.
    """
    for loss, (function, reason) in _LOSSES.items():
        for call in source.calls(f"mlx.nn.losses.{loss}"):
            # The fourth argument of binary_cross_entropy is `with_logits`.
            of_logits = constant(keyword(call, "with_logits")) is not False and len(call.args) < 4
            if of_logits and call.args and _is_last(source, call.args[0], function):
                yield call, f"{loss} {reason}"


def _is_last(source: SourceFile, node: ast.expr, function: str, depth: int = _DEPTH) -> bool:
    """Whether the last thing done to a value is this function."""
    node = source.values(node)[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
        # `nn.Softmax()(x)`.
        node = node.func
    names = (f"mlx.core.{function}", f"mlx.nn.{function}", f"mlx.nn.{function.title()}")
    if source.is_call(node, *names):
        return True
    match node if depth else None:
        case (
            ast.Subscript(value=value)
            | ast.Call(func=ast.Attribute(value=value, attr="astype" | "reshape" | "squeeze"))
        ):
            return _is_last(source, value, function, depth - 1)
        case ast.Call(func=ast.Name(id="model") | ast.Attribute(attr="model")):
            ends = _ends_of_model(source)
            return bool(ends) and all(_is_last(source, end, function, depth - 1) for end in ends)
    return False


def _ends_of_model(source: SourceFile) -> list[ast.expr]:
    """What the model of this file returns, where only one class is a module."""
    modules = [
        made
        for made in source.of(ast.ClassDef)
        if any(source.is_named(base, "mlx.nn.Module") for base in made.bases)
    ]
    return [
        value
        for made in (modules if len(modules) == 1 else [])
        for method in made.body
        if isinstance(method, ast.FunctionDef) and method.name == "__call__"
        for value in source.returned(method)
    ]
