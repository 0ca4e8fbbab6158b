"""What a value is made of within its own function, and what a function returns.

`logits`, a name, was given `model(x)[:, :-1]` some lines above: rules ask for that, not for the
name. Here nothing is followed out of the function: to a loss, what comes from outside is a number.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from mlxdoctor.lint.python_file import Function, SourceFile

#: Names followed in a row: a loss has a handful.
DEPTH = 8
#: Calls that differentiate; the loss is the second argument of the first, the first of the others.
DIFFERENTIATING = ("mlx.nn.value_and_grad", "mlx.core.value_and_grad", "mlx.core.grad")


def resolved(source: SourceFile, node: ast.expr) -> ast.expr:
    """The expression that is behind a name where it is used: the last, where there are several."""
    return source.values(node)[0]


def given_here(source: SourceFile, name: ast.Name) -> list[ast.expr]:
    """The values that a name may have been given in its own function; none if handed in."""
    scope = source.scope(name)
    return [
        one.value
        for one in source.given(name)
        if one.value is not None and source.scope(one.node) is scope
    ]


def parts(
    source: SourceFile,
    node: ast.expr,
    stop: Callable[[ast.AST], bool] | None = None,
    depth: int = DEPTH,
) -> Iterator[ast.expr]:
    """Every expression that a value is computed from in its function, itself first.

    Args:
        stop: nodes that are not looked into.
    """
    if stop is not None and stop(node):
        return
    yield node
    if isinstance(node, ast.Name) and depth:
        for value in given_here(source, node):
            yield from parts(source, value, stop, depth - 1)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            yield from parts(source, child.value, stop, depth)
        elif isinstance(child, ast.expr):
            yield from parts(source, child, stop, depth)


def returned(source: SourceFile, function: Function) -> list[ast.expr]:
    """What a function returns, functions in it left out."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    return [
        one.value
        for one in source.of(ast.Return, within=function)
        if one.value is not None and source.scope(one) is function
    ]


def losses(source: SourceFile) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that differentiate, and what they are given as the loss."""
    for call in source.calls(*DIFFERENTIATING):
        place = 1 if source.is_call(call, "mlx.nn.value_and_grad") else 0
        by_name = next((one.value for one in call.keywords if one.arg in ("fn", "fun")), None)
        loss = call.args[place] if len(call.args) > place else by_name
        if loss is not None and not any(isinstance(one, ast.Starred) for one in call.args):
            yield call, loss


def model_updates(source: SourceFile, within: ast.AST | None = None) -> Iterator[ast.Call]:
    """`optimizer.update(model, gradients)`, by the optimizer's name."""
    for call in source.calls(".update", within=within):
        held = call.func.value if isinstance(call.func, ast.Attribute) else call
        if len(call.args) == 2 and "opt" in ast.unparse(held).lower():
            yield call


def is_stored(name: ast.Name | ast.Attribute) -> bool:
    """Whether a name is given a value where it stands."""
    return isinstance(name.ctx, ast.Store)
