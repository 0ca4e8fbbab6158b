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


@rule(severity=Severity.ERROR, symptom="step-state.claimed-adapter", bad=BAD, good=GOOD)
def module_dict_walk(source: SourceFile) -> Hits:
    """Iteration over `__dict__` or `vars` in a function that asks for MLX modules."""
    for node in source.nodes:
        walked = _walked(source, node)
        if walked is None:
            continue
        asks = any(
            source.is_call(one, "isinstance")
            and any(source.name_of(part).startswith("mlx.nn.") for part in ast.walk(one))
            for one in ast.walk(source.scope(node))
        )
        if asks:
            yield walked, "an MLX module keeps its parts as dict items: use named_modules()"


def _walked(source: SourceFile, node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Attribute) and node.attr in {"items", "values"}:
        held = node.value
        if isinstance(held, ast.Attribute) and held.attr == "__dict__":
            return held
        if source.is_call(held, "vars"):
            return held
    return None
