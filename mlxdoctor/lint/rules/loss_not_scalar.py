"""A loss that is one number a token, where a gradient needs one number.

`nn.losses.cross_entropy` has `reduction="none"` by default, unlike that of PyTorch: it returns one
loss a token. `value_and_grad` refuses anything but a scalar at the first step.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import losses, returned
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets)

def step(model, inputs, targets):
    return nn.value_and_grad(model, loss_fn)(model, inputs, targets)
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, inputs, targets):
    return nn.value_and_grad(model, loss_fn)(model, inputs, targets)
"""
#: Losses whose `reduction` is "none" by default, and the place of that argument.
UNREDUCED = {
    "mlx.nn.losses.cross_entropy": 5,
    "mlx.nn.losses.nll_loss": 3,
    "mlx.nn.losses.kl_div_loss": 3,
    "mlx.nn.losses.smooth_l1_loss": 4,
    "mlx.nn.losses.triplet_loss": 7,
    "mlx.nn.losses.hinge_loss": 2,
    "mlx.nn.losses.huber_loss": 3,
    "mlx.nn.losses.log_cosh_loss": 2,
    "mlx.nn.losses.cosine_similarity_loss": 4,
    "mlx.nn.losses.margin_ranking_loss": 4,
}
#: Of these the default is the mean.
REDUCED = ("mlx.nn.losses.smooth_l1_loss",)


@rule(
    severity=Severity.ERROR,
    symptom="step-gradients.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(", "loss"),
)
def loss_not_scalar(source: SourceFile) -> Hits:
    """A differentiated function of this file that returns such a loss as it is."""
    seen: set[ast.AST] = set()
    for _, loss in losses(source):
        function = source.function_named(loss)
        if function is None or function in seen or getattr(function, "decorator_list", None):
            continue
        seen.add(function)
        for value in returned(source, function):
            if (found := _unreduced(source, value)) is not None:
                name = source.name_of(found.func).rpartition(".")[2]
                yield (
                    found,
                    f"{name} returns one loss an element, and a gradient needs one number: "
                    'reduction="mean", or a mean over the mask',
                )
                break


def _unreduced(source: SourceFile, value: ast.expr) -> ast.Call | None:
    """The loss that is returned as it is: alone, or first of several."""
    if isinstance(value, ast.Tuple) and value.elts:
        return _unreduced(source, value.elts[0])
    values = source.values(value)
    value = values[0]
    if len(values) > 1 or not isinstance(value, ast.Call):
        return None
    place = UNREDUCED.get(name := source.name_of(value.func))
    if place is None or name in REDUCED or any(one.arg is None for one in value.keywords):
        return None
    reduction = keyword(value, "reduction")
    if reduction is None and len(value.args) > place:
        return None
    return value if reduction is None or constant(reduction) == "none" else None
