"""`tree_flatten` unpacked as in JAX, or its second element taken for the arrays.

In JAX it returns leaves and structure. In MLX it returns one list of pairs: `[1]` is its second
pair, and unpacking into two fails, or takes two pairs for something else.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
from mlx.utils import tree_flatten

def count(model):
    return sum(p.size for p in tree_flatten(model.trainable_parameters())[1])
"""
GOOD = """
from mlx.utils import tree_flatten

def count(model):
    return sum(p.size for _, p in tree_flatten(model.trainable_parameters()))
"""


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD, words=("tree_flatten",))
def flattened_unpacked(source: SourceFile) -> Hits:
    """An index of 1 that is not asked for a pair's parts, or two names as targets."""
    for call in source.calls("mlx.utils.tree_flatten"):
        parent = source.parents.get(call)
        if isinstance(parent, ast.Subscript) and constant(parent.slice) == 1:
            if not isinstance(source.parents.get(parent), ast.Subscript):
                yield (
                    parent,
                    "[1] is the second pair of name and array; the arrays are the second of each "
                    "pair",
                )
        elif isinstance(parent, ast.Assign) and any(
            isinstance(one, ast.Tuple)
            and len(one.elts) == 2
            and all(isinstance(each, ast.Name) for each in one.elts)
            for one in parent.targets
        ):
            yield parent, "tree_flatten returns one list of pairs, not leaves and structure"
