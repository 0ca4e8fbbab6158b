"""What a value is made of: followed through the assignments of its own function.

`logits`, a name, was given `model(x)[:, :-1]` some lines above: rules ask for that, not for the
name. Nothing is followed out of the function: a value from outside is what it is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from mlxdoctor.lint.python_file import Function, SourceFile

#: Assignments followed in a row: a loss has a handful.
DEPTH = 8


def given(source: SourceFile, name: ast.Name) -> list[ast.expr]:
    """The values that a name is given in its function, in order of the file; unpacked ones too.

    `a, b = c, d` gives each its own; of `a, b = call()` each is given the call.
    """
    scope = source.scope(name)
    return [
        value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr)
        and source.scope(node) is scope
        for value in _values(node, name.id)
    ]


def last_given(source: SourceFile, name: ast.Name) -> ast.expr | None:
    """The value that a name was given last above the line it stands on; None where it is handed
    in, or comes from outside the function.
    """
    before = [one for one in given(source, name) if one.lineno < name.lineno]
    return before[-1] if before else None


def resolved(source: SourceFile, node: ast.expr, depth: int = DEPTH) -> ast.expr:
    """The expression behind a name, and behind the name that it is, and so on."""
    while depth and isinstance(node, ast.Name):
        value = last_given(source, node)
        if value is None:
            break
        node, depth = value, depth - 1
    return node


def parts(
    source: SourceFile,
    node: ast.expr,
    stop: Callable[[ast.AST], bool] = lambda node: False,
    depth: int = DEPTH,
) -> Iterator[ast.AST]:
    """Every node that a value is computed from in its function, itself first.

    Args:
        stop: nodes that are not looked into.
    """
    if stop(node):
        return
    yield node
    if isinstance(node, ast.Name) and depth:
        value = last_given(source, node)
        if value is not None:
            yield from parts(source, value, stop, depth - 1)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.keyword | ast.comprehension):
            below = child.value if isinstance(child, ast.keyword) else child
            yield from parts(source, below, stop, depth)  # type: ignore[arg-type]


def returned(function: Function) -> list[ast.expr]:
    """What a function returns, nested functions left out."""
    if isinstance(function, ast.Lambda):
        return [function.body]
    found: list[ast.expr] = []
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop(0)
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        if not isinstance(node, Function | ast.ClassDef):
            stack += ast.iter_child_nodes(node)
    return found


def uses_mlx(source: SourceFile) -> bool:
    """Whether a file imports MLX: arrays of others have other rules."""
    return any(name.partition(".")[0].startswith("mlx") for name in source.imports.values())


def _values(node: ast.AST, name: str) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value, name)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield from _unpacked(node.target, node.value, name)


def _unpacked(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple | ast.List):
        each = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        values = value.elts if each else [value] * len(target.elts)  # type: ignore[attr-defined]
        for one, part in zip(target.elts, values, strict=True):
            yield from _unpacked(one, part, name)
