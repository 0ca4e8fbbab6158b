"""A model that is asked for `forward`.

A module of MLX is called: `model(tokens)`. There is no `forward` behind the call, as there is in
PyTorch, unless a class defines one; those of mlx-lm do not. What `parameters()` returns has none
either: it is a dict. The first step raises an AttributeError.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import losses
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    logits = model.forward(inputs)
    return nn.losses.cross_entropy(logits, targets, reduction="mean")

def step(model, inputs, targets):
    return nn.value_and_grad(model, loss_fn)(model, inputs, targets)
"""
GOOD = BAD.replace("model.forward(inputs)", "model(inputs)")


@rule(
    severity=Severity.ERROR,
    symptom="step-forward.failed",
    bad=BAD,
    good=GOOD,
    words=(".forward(", "value_and_grad|mx.grad|import grad"),
)
def forward_method(source: SourceFile) -> Hits:
    """`forward` of a loss's parameter called model, where no class of the file has that method."""
    if any(one.name == "forward" for one in source.of(ast.FunctionDef)):
        return
    seen: set[Function] = set()
    for _, loss in losses(source):
        function = source.function_named(loss)
        if function is None or function in seen:
            continue
        seen.add(function)
        own = {one.arg for one in (*function.args.posonlyargs, *function.args.args)}
        for call in source.calls(".forward", within=function):
            held = call.func.value if isinstance(call.func, ast.Attribute) else None
            if not isinstance(held, ast.Name) or held.id not in own & {"model", "m"}:
                continue
            if not _are_parameters(source, function):
                yield call, f"MLX's modules have no forward: call the model, {held.id}(...)"
                break


def _are_parameters(source: SourceFile, function: Function) -> bool:
    """Whether the loss is handed a dict of parameters, of which another rule speaks."""
    return any(
        one is function and any(source.are_parameters(use.args[0]) for use in uses if use.args)
        for call, one, _ in source.differentiated()
        for uses in [list(source.uses_of(call))]
    )
