"""Something that is no function, where `value_and_grad` takes one.

`nn.value_and_grad(model, loss_fn)` takes the model and the function itself; it returns a function
that is called with the function's arguments. A loss that was already computed is an array, which
nothing can be differentiated through any more, and `mx.value_and_grad` takes no model beside it.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given_here, returned
from mlxdoctor.lint.python_file import Function, SourceFile, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, optimizer, inputs, targets):
    loss, grads = nn.value_and_grad(model, loss_fn(model, inputs, targets))
    optimizer.update(model, grads)
    return loss
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, optimizer, inputs, targets):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, inputs, targets)
    optimizer.update(model, grads)
    return loss
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|grad(",),
)
def gradient_of_value(source: SourceFile) -> Hits:
    """The loss is called in place, its place is another's, or there is none."""
    for call in source.calls("mlx.nn.value_and_grad"):
        loss = call.args[1] if len(call.args) > 1 else keyword(call, "fn")
        if any(isinstance(one, ast.Starred) for one in call.args):
            continue
        if loss is None:
            if len(call.args) == 1 and not call.keywords:
                yield call, "nn.value_and_grad takes a model and a loss function: one is missing"
        elif _is_unpacked(source, call):
            yield (
                call,
                "this is a function: call it with the loss's arguments for loss and gradients",
            )
        elif _is_swapped(source, call, loss):
            yield call, "the model comes first: nn.value_and_grad(model, loss_fn)"
        elif _is_value(source, loss):
            yield loss, _said(loss)
    for call in source.calls("mlx.core.value_and_grad", "mlx.core.grad"):
        if not call.args:
            continue
        if len(call.args) > 1 and (_is_loss(source, call.args[1]) or _is_called_loss(call.args[1])):
            yield (
                call,
                (
                    "mx.value_and_grad takes a function and the numbers of its arguments: with a "
                    "model it is nn.value_and_grad(model, loss_fn)"
                ),
            )
        elif _is_value(source, call.args[0]):
            yield call.args[0], _said(call.args[0])


def _said(loss: ast.expr) -> str:
    name = ast.unparse(loss.func) if isinstance(loss, ast.Call) else ast.unparse(loss)
    return f"the loss is computed here: give the function itself, without ({name}, not {name}(...))"


def _is_loss(source: SourceFile, node: ast.expr) -> bool:
    """Whether a node names a function of this file, or is one."""
    return isinstance(node, ast.Name | ast.Lambda) and source.function_named(node) is not None


def _is_called_loss(node: ast.expr) -> bool:
    """Whether a name says that it is a loss function."""
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last.lower().strip("_").endswith(("loss", "loss_fn", "loss_function", "lossfn"))


def _is_unpacked(source: SourceFile, call: ast.Call) -> bool:
    """Whether the function that is returned is taken apart as if it were its results."""
    above = source.parents.get(call)
    return isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Tuple)


def _is_swapped(source: SourceFile, call: ast.Call, second: ast.expr) -> bool:
    """The first is a function of the file, and the second, called model, is none."""
    if not call.args or not isinstance(second, ast.Name | ast.Attribute):
        return False
    last = second.attr if isinstance(second, ast.Attribute) else second.id
    is_model = last == "model" or last.endswith("_model")
    first = call.args[0]
    if not is_model or not isinstance(first, ast.Name | ast.Attribute):
        return False
    if isinstance(first, ast.Name) and given_here(source, first):
        return False
    is_loss = _is_loss(source, first) or _is_called_loss(first)
    return is_loss and not _is_loss(source, second)


def _is_value(source: SourceFile, node: ast.expr) -> bool:
    """Whether an expression is a call that returns an array."""
    if not isinstance(node, ast.Call):
        return False
    if source.name_of(node.func).startswith("mlx.nn.losses."):
        return True
    function = source.function_named(node.func)
    if function is None and _is_called_loss(node.func) and len(node.args) > 1:
        # `make_loss(model)` returns a loss; `answer_loss(model, inputs)` is one.
        last = ast.unparse(node.func).rpartition(".")[2].lower().strip("_")
        return not last.startswith(("make", "get", "build", "create", "with", "compile", "wrap"))
    # A method may be another class's, and a decorator may return anything.
    if not isinstance(node.func, ast.Name) or function is None or _is_decorated(function):
        return False
    values = returned(source, function)
    return bool(values) and all(_is_array(source, one) for one in values)


def _is_decorated(function: Function) -> bool:
    return isinstance(function, ast.Lambda) or bool(function.decorator_list)


def _is_array(source: SourceFile, node: ast.expr) -> bool:
    """Whether a returned value is arithmetic or a loss; a tuple that begins with one."""
    if isinstance(node, ast.Tuple) and node.elts:
        return _is_array(source, node.elts[0])
    if isinstance(node, ast.Name):
        values = given_here(source, node)
        return bool(values) and all(
            not isinstance(one, ast.Name) and _is_array(source, one) for one in values
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("mean", "sum"):
            return True
        return source.name_of(node.func).startswith("mlx.nn.losses.")
    return isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)
