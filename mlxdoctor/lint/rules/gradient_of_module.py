"""`mx.value_and_grad` or `mx.grad` with respect to a model of which a part is frozen.

These two go by every array that a module holds, and pay no heed to `freeze()`: the base model gets
gradients as well, and an update with them changes it. A module that also holds lists of something
else, as many of mlx-lm's do, is refused ("should contain only arrays").
`nn.value_and_grad(model, loss)` is made for modules: it goes by what is trainable.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, body
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(model, parameters):
    model.freeze()
    linear_to_lora_layers(model, 16, parameters)

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, inputs, targets):
    return mx.value_and_grad(loss_fn)(model, inputs, targets)
"""
GOOD = BAD.replace("mx.value_and_grad(loss_fn)", "nn.value_and_grad(model, loss_fn)").replace(
    "import mlx.core as mx\n", ""
)


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def gradient_of_module(source: SourceFile) -> Hits:
    """The differentiated parameter is called in the loss, or a model is handed over for it.

    Where no freezing, adapter or mlx-lm is spoken of, a gradient by everything is meant.
    """
    for call, function, name in source.differentiated():
        if not _is_partly_frozen(source):
            return
        given = [use.args[0] for use in source.uses_of(call) if use.args]
        if any(source.are_parameters(one) for one in given):
            continue
        statements = body(function)
        used = any(
            one.id == name for part in statements for one in source.of(ast.Name, within=part)
        )
        if (used and any(_is_model(one) for one in given)) or _is_called(source, name, statements):
            yield (
                call,
                f"the gradient is by all that {name!r} holds, frozen or not, and fails where that "
                "is more than arrays: use nn.value_and_grad(model, loss)",
            )


def _is_partly_frozen(source: SourceFile) -> bool:
    """Whether the file speaks of freezing or of adapters, or reads a model of mlx-lm."""
    said = source.text.lower()
    return any(one in said for one in ("freeze", "lora", "adapter", "mlx_lm"))


def _is_called(source: SourceFile, name: str, statements: list[ast.AST]) -> bool:
    return any(
        isinstance(one.func, ast.Name) and one.func.id == name
        for statement in statements
        for one in source.of(ast.Call, within=statement)
    )


def _is_model(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last == "model" or last.endswith("_model")
