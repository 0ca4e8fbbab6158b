"""A compiled training step that does not say what it changes.

`mx.compile` takes whatever a function uses and is not handed as a constant, from its first call on.
A gradient function compiled this way returns the gradient of the first weights for ever; a
step that updates a model keeps the update inside, and the weights outside become arrays that
cannot be read. `inputs=` and `outputs=` name the state: `[model.state, optimizer.state]`, and
`mx.random.state` where there is dropout.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile, keyword, parameters

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
GOOD = BAD.replace(
    "    @mx.compile",
    """    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)""",
).replace("import mlx.core", "from functools import partial\nimport mlx.core")


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.nothing-changed",))
def compiled_without_state(source: SourceFile) -> Hits:
    """`mx.compile` without `inputs` or `outputs`, of a gradient by a module's parameters, or of a
    function that updates a model.
    """
    for call in source.calls("mlx.core.compile"):
        if len(call.args) != 1 or _states(call):
            continue
        compiled = source.values(call.args[0])
        if len(compiled) == 1 and source.is_call(compiled[0], "mlx.nn.value_and_grad"):
            yield (
                call,
                "the compiled gradient is that of the weights at its first call, for ever: name "
                "the model's state in inputs=",
            )
        elif (function := source.function(call.args[0])) is not None:
            yield from _updating(source, call, function)
    for function in source.of(ast.FunctionDef):
        if any(_compiles(source, decorator) for decorator in function.decorator_list):
            yield from _updating(source, function, function)


def _states(call: ast.Call) -> bool:
    """Whether a call names the state, or may."""
    return (
        keyword(call, "inputs") is not None
        or keyword(call, "outputs") is not None
        or any(given.arg is None for given in call.keywords)
    )


def _compiles(source: SourceFile, decorator: ast.expr) -> bool:
    """`@mx.compile`, bare or with `shapeless=` alone."""
    call = decorator if isinstance(decorator, ast.Call) else None
    named = source.is_named(call.func if call else decorator, "mlx.core.compile")
    return named and (call is None or not _states(call))


def _updating(source: SourceFile, node: ast.AST, function: Function) -> Hits:
    """The hit, where an optimizer updates a model in a function that is not handed it."""
    handed = set(parameters(function)) - {"self"}
    for call in source.updates(within=function):
        model = ast.unparse(call.args[0])
        if model.partition(".")[0] not in handed:
            yield (
                node,
                f"the compiled function updates {model}, which is neither in inputs= nor in "
                "outputs=: the update stays inside",
            )
        return
