"""Weights loaded with `strict=False`.

Names that fit nothing are left out without a word: an adapter for another model, or one whose names
have a prefix too many, loads "successfully" and does nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def resume(model, path):
    model.load_weights(path, strict=False)
"""
GOOD = """
import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

def resume(model, path):
    weights = mx.load(path)
    wanted = dict(tree_flatten(model.trainable_parameters()))
    if weights.keys() != wanted.keys():
        raise ValueError(f"{path} does not fit: {sorted(weights.keys() ^ wanted.keys())[:5]}")
    model.update(tree_unflatten(list(weights.items())))
"""


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD)
def non_strict_load(source: SourceFile) -> Hits:
    """The keyword as a literal, and no look at the names in the same function."""
    for call in source.calls(".load_weights"):
        value = keyword(call, "strict")
        positional = call.args[1] if len(call.args) > 1 else None
        if constant(value if value is not None else positional) is not False:
            continue
        if not _compares_names(source.scope(call)):
            yield call, "names that fit nothing are skipped in silence: compare them first"


def _compares_names(scope: ast.AST) -> bool:
    """Whether the function looks at sets of names, or leaves that to a function that does."""
    if isinstance(scope, ast.Module):
        return False
    return any(
        (isinstance(node, ast.Call) and "require" in ast.unparse(node.func).lower())
        or (isinstance(node, ast.Compare) and "keys" in ast.unparse(node))
        for node in ast.walk(scope)
    )
