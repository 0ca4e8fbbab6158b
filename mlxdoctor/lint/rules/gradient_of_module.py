"""`mx.value_and_grad` or `mx.grad` where the gradient by what is trainable is meant.

These two go by their first argument. Of a module they take every array that it holds, and pay no
heed to `freeze()`: the base model gets gradients as well, and an update with them changes it; a
module that also holds lists of something else is refused ("should contain only arrays"). Of the
batch they give the gradient by the inputs, which has nothing of the model's parameters in it.
`nn.value_and_grad(model, loss)` goes by what is trainable.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile, constant, is_model

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


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.failed",))
def gradient_of_module(source: SourceFile) -> Hits:
    """The differentiated parameter is called in the loss, or a model is handed over for it; or it
    goes into the call of the model, and the gradient into the model's update.

    Where no freezing, adapter or mlx-lm is spoken of, a gradient by everything is meant.
    """
    text = source.text.lower()
    is_partly_frozen = any(word in text for word in ("freeze", "lora", "adapter", "mlx_lm"))
    for call, function, name in source.differentiated():
        uses = list(source.uses_of(call))
        if any(_updates_model(source, use) for use in uses) and _is_input(source, name, function):
            yield (
                call,
                f"the gradient is by {name!r}, which is the model's input: use "
                "nn.value_and_grad(model, loss)",
            )
        elif is_partly_frozen and _is_by_module(source, uses, name, function):
            yield (
                call,
                f"the gradient is by all that {name!r} holds, frozen or not, and fails where that "
                "is more than arrays: use nn.value_and_grad(model, loss)",
            )


def _is_by_module(source: SourceFile, uses: list[ast.Call], name: str, function: Function) -> bool:
    given = [use.args[0] for use in uses if use.args]
    if any(source.are_parameters(argument) for argument in given):
        return False
    is_called = any(
        isinstance(call.func, ast.Name) and call.func.id == name
        for call in source.of(ast.Call, within=function)
    )
    return is_called or (any(map(is_model, given)) and name in source.names_in(function))


def _is_input(source: SourceFile, name: str, function: Function) -> bool:
    """Whether a model is called with the name itself."""
    return any(
        ast.unparse(call.func) in {"model", "self.model"}
        and any(isinstance(argument, ast.Name) and argument.id == name for argument in call.args)
        for call in source.of(ast.Call, within=function)
    )


def _updates_model(source: SourceFile, use: ast.Call) -> bool:
    """Whether the gradients of this call are given to an optimizer, with a model."""
    for update in source.updates(within=source.scope(use)):
        if ast.unparse(update.args[0]) not in {"model", "self.model"}:
            continue
        for value in source.values(update.args[1]):
            if isinstance(value, ast.Subscript) and value.value is use:
                return constant(value.slice) == 1
    return False
