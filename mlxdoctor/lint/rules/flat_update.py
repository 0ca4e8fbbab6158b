"""Flat names given to `update`, which takes a tree.

A file holds arrays by dotted names (`layers.0.q_proj.weight`). `model.update` and
`optimizer.update` walk nested dicts and lists: a dotted name is none of a module's, so that the
call fails, or, in versions of MLX before `update` was strict, changes nothing without a word.
`tree_unflatten(list(weights.items()))` makes the tree; `model.load_weights` takes the names.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def resume(model, path):
    weights = mx.load(path)
    model.update(weights)
"""
GOOD = """
import mlx.core as mx
from mlx.utils import tree_unflatten

def resume(model, path):
    weights = mx.load(path)
    model.update(tree_unflatten(list(weights.items())))
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-update.failed",
    bad=BAD,
    good=GOOD,
    words=(".update(", "load(|tree_flatten"),
)
def flat_update(source: SourceFile) -> Hits:
    """What `mx.load` or `dict(tree_flatten(...))` returned, given to the update of a model, or as
    the gradients to that of an optimizer.
    """
    for call in source.calls(".update"):
        held = call.func.value if isinstance(call.func, ast.Attribute) else call
        name = ast.unparse(held).rpartition(".")[2].lower()
        if len(call.args) == 1 and (name == "model" or name.endswith("_model")):
            tree = call.args[0]
        elif len(call.args) == 2 and "opt" in name:
            tree = call.args[1]
        else:
            continue
        if _is_flat(source, tree) and not _has_plain_names(source, tree):
            yield call, "update takes a tree, and these are dotted names: tree_unflatten makes one"


def _has_plain_names(source: SourceFile, tree: ast.expr) -> bool:
    """Whether the function asks the weights for a name without a dot: a model without parts."""
    return isinstance(tree, ast.Name) and any(
        isinstance(one.value, ast.Name)
        and one.value.id == tree.id
        and isinstance(said := constant(one.slice), str)
        and "." not in said
        for one in source.of(ast.Subscript, within=source.scope(tree))
    )


def _is_flat(source: SourceFile, node: ast.expr) -> bool:
    values = source.values(node)
    return all(
        source.is_call(one, "mlx.core.load")
        or (
            source.is_call(one, "dict")
            and len(one.args) == 1
            and source.is_call(one.args[0], "mlx.utils.tree_flatten")
        )
        for one in values
    )
