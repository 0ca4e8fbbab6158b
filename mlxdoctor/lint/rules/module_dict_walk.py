"""Modules looked for in `__dict__`.

An MLX module is itself a dict, and keeps its parts there, not among its attributes: `vars(module)`
and `module.__dict__` hold none of them. A converter that walks them converts nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

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


@rule(
    severity=Severity.ERROR,
    symptom="step-state.claimed-adapter",
    bad=BAD,
    good=GOOD,
    words=("__dict__|vars(", "isinstance"),
)
def module_dict_walk(source: SourceFile) -> Hits:
    """What is found in `__dict__` or `vars` is asked for being an MLX module; and the function does
    not look into dicts as well, which modules are.
    """
    for loop in source.of(ast.For, ast.comprehension):
        walked = _walked(source, loop.iter)
        if walked is None:
            continue
        where = source.parents[loop] if isinstance(loop, ast.comprehension) else loop
        names = {one.id for one in source.of(ast.Name, within=loop.target)}
        asked = [
            call
            for call in source.calls("isinstance", within=where)
            if len(call.args) == 2 and isinstance(call.args[0], ast.Name)
            if call.args[0].id in names and _names_modules(source, call.args[1])
        ]
        if asked and not _knows_better(source, source.scope(loop)):
            yield walked, "an MLX module keeps its parts as dict items: use named_modules()"


def _names_modules(source: SourceFile, node: ast.expr) -> bool:
    return any(
        source.name_of(one).startswith("mlx.nn.")
        for one in source.of(ast.Attribute, ast.Name, within=node)
    )


def _knows_better(source: SourceFile, scope: ast.AST) -> bool:
    """Whether a function also walks as MLX means it."""
    dicts = any(
        len(call.args) == 2
        and "dict" in {one.id for one in source.of(ast.Name, within=call.args[1])}
        for call in source.calls("isinstance", within=scope)
    )
    return dicts or any(
        source.calls(".named_modules", ".modules", ".children", ".leaf_modules", within=scope)
    )


def _walked(source: SourceFile, node: ast.expr) -> ast.AST | None:
    """`X.__dict__` or `vars(X)` of `X.__dict__.items()`, `list(vars(X).values())`."""
    if isinstance(node, ast.Call) and source.is_call(node, "list", "tuple", "sorted") and node.args:
        node = node.args[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        held = node.func.value
        if node.func.attr in {"items", "values"}:
            if isinstance(held, ast.Attribute) and held.attr == "__dict__":
                return held
            if source.is_call(held, "vars"):
                return held
    return None
