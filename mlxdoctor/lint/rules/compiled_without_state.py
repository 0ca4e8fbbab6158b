"""A compiled training step that does not say what it changes.

`mx.compile` takes whatever a function uses and is not handed as a constant, from its first call on.
A gradient function compiled this way returns the gradient of the first weights for ever; a
step that updates a model keeps the update inside, and the weights outside become arrays that
cannot be read. `inputs=` and `outputs=` name the state: `[model.state, optimizer.state]`, and
`mx.random.state` where there is dropout.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import model_updates
from mlxdoctor.lint.python_file import Function, SourceFile, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def make_step(model, optimizer, loss_fn):
    loss_and_grad = nn.value_and_grad(model, loss_fn)

    @mx.compile
    def step(inputs, targets):
        loss, grads = loss_and_grad(inputs, targets)
        optimizer.update(model, grads)
        return loss

    return step
"""
GOOD = """
from functools import partial
import mlx.core as mx
import mlx.nn as nn

def make_step(model, optimizer, loss_fn):
    loss_and_grad = nn.value_and_grad(model, loss_fn)
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(inputs, targets):
        loss, grads = loss_and_grad(inputs, targets)
        optimizer.update(model, grads)
        return loss

    return step
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-update.nothing-changed",
    bad=BAD,
    good=GOOD,
    words=("compile", "grad|update("),
)
def compiled_without_state(source: SourceFile) -> Hits:
    """`mx.compile` without `inputs` or `outputs`, of a gradient by a module's parameters, or of a
    function that updates a model.
    """
    for call in source.calls("mlx.core.compile"):
        if not call.args or any(one.arg in (None, "inputs", "outputs") for one in call.keywords):
            continue
        if len(call.args) > 1:
            continue
        function = call.args[0]
        made = source.values(function)
        if len(made) == 1 and source.is_call(made[0], "mlx.nn.value_and_grad"):
            yield (
                call,
                (
                    "the compiled gradient is that of the weights at its first call, for ever: "
                    "name the model's state in inputs="
                ),
            )
            continue
        named = source.function_named(function)
        if named is not None and (update := _update(source, named)):
            yield call, _said(update)
    for node in source.of(ast.FunctionDef):
        compiled = any(_is_compile(source, one) for one in node.decorator_list)
        if compiled and (update := _update(source, node)):
            yield node, _said(update)


def _is_compile(source: SourceFile, node: ast.expr) -> bool:
    """`@mx.compile`, bare or with `shapeless=` alone."""
    if source.is_named(node, "mlx.core.compile"):
        return True
    if not isinstance(node, ast.Call):
        return False
    if source.is_call(node, "functools.partial"):
        is_compile = bool(node.args) and source.is_named(node.args[0], "mlx.core.compile")
    else:
        is_compile = source.is_call(node, "mlx.core.compile")
    stated = keyword(node, "inputs") is not None or keyword(node, "outputs") is not None
    return is_compile and not stated and all(one.arg is not None for one in node.keywords)


def _said(update: str) -> str:
    return (
        f"the compiled function updates {update}, which is neither in inputs= nor in outputs=: "
        "the update stays inside"
    )


def _update(source: SourceFile, function: Function) -> str | None:
    """The model that an optimizer updates in a function, where it is not handed in."""
    own = {one.arg for one in (*function.args.posonlyargs, *function.args.args)}
    for call in model_updates(source, within=function):
        model = ast.unparse(call.args[0])
        return model if model.partition(".")[0] not in own - {"self"} else None
    return None
