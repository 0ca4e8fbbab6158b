"""A differentiated loss called with another number of arguments than it takes.

`nn.value_and_grad(model, loss_fn)` returns a function with the arguments of `loss_fn`, all of them:
if the loss takes the model, the model has to be passed as well; if it does not, it must not be.
The first step raises a TypeError.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given
from mlxdoctor.lint.python_file import Function, SourceFile, keyword
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


@rule(severity=Severity.ERROR, symptom="step-update.failed", bad=BAD, good=GOOD)
def loss_arguments(source: SourceFile) -> Hits:
    """Too few or too many, counted where the loss is a function of this file."""
    for call in source.calls("mlx.nn.value_and_grad", "mlx.core.value_and_grad", "mlx.core.grad"):
        of_module = source.name_of(call.func) == "mlx.nn.value_and_grad"
        place = 1 if of_module else 0
        loss = call.args[place] if len(call.args) > place else keyword(call, "fn")
        function = source.function_named(loss) if loss is not None else None
        if function is None or getattr(function, "decorator_list", None):
            continue
        if isinstance(loss, ast.Attribute) and not _is_of_its_class(source, call, loss, function):
            continue
        if isinstance(loss, ast.Name) and given(source, loss):
            continue
        for use in source.uses_of(call):
            if _has_one_meaning(source, use) and (said := _mismatch(source, function, use)):
                yield use, said


def _is_of_its_class(
    source: SourceFile, call: ast.Call, loss: ast.Attribute, function: Function
) -> bool:
    """Whether `self.loss` is a method of the class it is named in, and no other object's."""
    if not (isinstance(loss.value, ast.Name) and loss.value.id == "self"):
        return False
    node: ast.AST | None = call
    while node is not None and not isinstance(node, ast.ClassDef):
        node = source.parents.get(node)
    return node is not None and source.parents.get(function) is node


def _has_one_meaning(source: SourceFile, use: ast.Call) -> bool:
    """Whether the name that is called was given one value only."""
    if isinstance(use.func, ast.Name):
        return len(given(source, use.func)) <= 1
    if not isinstance(use.func, ast.Attribute):
        return True
    text = ast.unparse(use.func)
    return sum(ast.unparse(node) == text for node in _stored(source)) == 1


def _stored(source: SourceFile) -> list[ast.Attribute]:
    return [
        node
        for node in source.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


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
