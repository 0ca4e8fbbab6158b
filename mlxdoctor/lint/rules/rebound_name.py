"""A path through a tree of parameters that ends in an assignment to the name it was followed by.

`obj = obj[part]` in a loop leads to the array; `obj = value` after it gives the name another
meaning, and leaves the tree as it was. Even where it is set in the tree, what `parameters()`
returned is a copy of the structure: the model does not see it.
"""

import ast
from collections.abc import Sequence

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def set_parameter(model, path, value):
    found = model.parameters()
    for part in path.split("."):
        found = found[part]
    found = value
"""
GOOD = """
from mlx.utils import tree_unflatten

def set_parameter(model, path, value):
    model.update(tree_unflatten([(path, value)]))
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-update.nothing-changed",
    bad=BAD,
    good=GOOD,
    words=("parameters(", "for "),
)
def rebound_name(source: SourceFile) -> Hits:
    """The last statement of a function gives a name that was walked along an argument's value."""
    for function in source.of(ast.FunctionDef, ast.AsyncFunctionDef):
        *before, last = function.body
        given = {one.arg for one in function.args.args}
        if (
            isinstance(last, ast.Assign)
            and len(last.targets) == 1
            and isinstance(last.targets[0], ast.Name)
            and isinstance(last.value, ast.Name)
            and last.value.id in given
            and _is_walked(source, before, last.targets[0].id)
        ):
            name = last.targets[0].id
            yield last, f"{name!r} only means something else now: nothing in the tree is set"


def _is_walked(source: SourceFile, statements: Sequence[ast.stmt], name: str) -> bool:
    """Whether a loop takes the name one level down at a time."""
    return any(
        isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == name
        and isinstance(node.value, ast.Subscript)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == name
        for loop in statements
        if isinstance(loop, ast.For)
        for node in source.of(ast.Assign, within=loop)
    )
