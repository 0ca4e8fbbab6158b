"""Modules looked for in `__dict__`.

An MLX module is itself a dict, and keeps its parts there, not among its attributes: `vars(module)`
and `module.__dict__` hold none of them. A converter that walks them converts nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.nn as nn

def convert(module):
    for name, child in vars(module).items():
        if isinstance(child, nn.Linear):
            setattr(module, name, wrap(child))
"""
GOOD = """
import mlx.nn as nn
from mlx.utils import tree_unflatten

def convert(model):
    found = [(n, wrap(m)) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    model.update_modules(tree_unflatten(found))
"""


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-state.claimed-adapter",))
def module_dict_walk(source: SourceFile) -> Hits:
    """What is found in `__dict__` or `vars` is asked for being an MLX module; and the function does
    not look into dicts as well, which modules are.
    """
    for loop in source.of(ast.For, ast.comprehension):
        walked = _walked(source, loop.iter)
        if walked is None:
            continue
        whole = source.parent(loop) if isinstance(loop, ast.comprehension) else loop
        names = source.names_in(loop.target)
        asked = any(
            isinstance(call.args[0], ast.Name)
            and call.args[0].id in names
            and _names_modules(source, call.args[1])
            for call in source.calls("isinstance", within=whole)
            if len(call.args) == 2
        )
        if asked and not _knows_better(source, source.scope(loop)):
            yield walked, "an MLX module keeps its parts as dict items: use named_modules()"


def _walked(source: SourceFile, node: ast.expr) -> ast.AST | None:
    """`X.__dict__` or `vars(X)` of `X.__dict__.items()`, `list(vars(X).values())`."""
    if source.is_call(node, "list", "tuple", "sorted") and node.args:
        node = node.args[0]
    match node:
        case ast.Call(func=ast.Attribute(attr="items" | "values", value=held)):
            is_dict = isinstance(held, ast.Attribute) and held.attr == "__dict__"
            return held if is_dict or source.is_call(held, "vars") else None
    return None


def _names_modules(source: SourceFile, node: ast.expr) -> bool:
    return any(
        source.name_of(name).startswith("mlx.nn.")
        for name in source.of(ast.Attribute, ast.Name, within=node)
    )


def _knows_better(source: SourceFile, scope: ast.AST) -> bool:
    """Whether a function also walks as MLX means it."""
    return any(
        len(call.args) == 2 and "dict" in source.names_in(call.args[1])
        for call in source.calls("isinstance", within=scope)
    ) or any(source.calls(".named_modules", ".modules", ".children", ".leaf_modules", within=scope))
