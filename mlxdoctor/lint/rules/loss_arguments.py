"""A differentiated loss called with another number of arguments than it takes.

`nn.value_and_grad(model, loss_fn)` returns a function with the arguments of `loss_fn`, all of them:
if the loss takes the model, the model has to be passed as well; if it does not, it must not be.
The first step raises a TypeError.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import losses
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, optimizer, inputs, targets):
    loss_and_grad = nn.value_and_grad(model, loss_fn)
    loss, grads = loss_and_grad(inputs, targets)
    optimizer.update(model, grads)
    return loss
"""
GOOD = BAD.replace("loss_and_grad(inputs, targets)", "loss_and_grad(model, inputs, targets)")


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def loss_arguments(source: SourceFile) -> Hits:
    """Too few or too many, counted where the loss is a function of this file."""
    for call, loss in losses(source):
        # What `partial` fills in beforehand is not counted here.
        plain = isinstance(loss, ast.Name | ast.Lambda) or _is_own(loss)
        function = source.function_named(loss) if plain else None
        if function is None or getattr(function, "decorator_list", None):
            continue
        if isinstance(loss, ast.Name) and any(one is not loss for one in source.values(loss)):
            continue
        for use in source.uses_of(call):
            only = use.func is call or source.values(use.func) == [call]
            if only and (said := _mismatch(source, function, use)):
                yield use, said


def _is_own(loss: ast.expr) -> bool:
    """`self.loss`: no other object's."""
    return (
        isinstance(loss, ast.Attribute)
        and isinstance(loss.value, ast.Name)
        and loss.value.id == "self"
    )


def _mismatch(source: SourceFile, function: Function, use: ast.Call) -> str | None:
    """What is wrong with the number of arguments; None where it fits or cannot be told."""
    takes = function.args
    starred = any(isinstance(one, ast.Starred) for one in use.args)
    if takes.vararg or takes.kwarg or starred or any(one.arg is None for one in use.keywords):
        return None
    names = [one.arg for one in (*takes.posonlyargs, *takes.args)]
    if isinstance(source.parents.get(function), ast.ClassDef) and names[:1] in (["self"], ["cls"]):
        del names[0]
    needed = names[: len(names) - len(takes.defaults)]
    by_name = {one.arg for one in use.keywords}
    name = getattr(function, "name", "the loss")
    if len(use.args) > len(names):
        return f"{name} takes {_arguments(len(names))} and is given {len(use.args)}"
    missing = [one for one in needed[len(use.args) :] if one not in by_name]
    if missing:
        return f"{name} is not given {' and '.join(missing)}: it takes ({', '.join(names)})"
    return None


def _arguments(number: int) -> str:
    return "one argument" if number == 1 else f"{number} arguments"
