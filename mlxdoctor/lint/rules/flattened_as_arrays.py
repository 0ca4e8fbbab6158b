"""What `tree_flatten` gives, taken for arrays.

It gives pairs of name and array. Code that tests each for being an array skips them all in
silence: norms of zero are reported, non-finite gradients pass, counts are zero.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
from mlx.utils import tree_flatten

def norm(grads):
    return sum(g.square().sum() for g in tree_flatten(grads))
"""
GOOD = """
from mlx.utils import tree_flatten

def norm(grads):
    return sum(g.square().sum() for _, g in tree_flatten(grads))
"""
#: Attributes of arrays that pairs do not have.
OF_ARRAYS = frozenset(
    {"size", "shape", "dtype", "nbytes", "ndim", "item", "astype", "square", "sum", "mean", "abs"}
)


@rule(severity=Severity.ERROR, symptom="step-update.nothing-changed", bad=BAD, good=GOOD)
def flattened_as_arrays(source: SourceFile) -> Hits:
    """A loop over pairs whose variable is used as an array."""
    for target, iterated, where in _loops(source.tree):
        if not source.is_call(iterated, "mlx.utils.tree_flatten"):
            continue
        # With a destination it gives a dict or fills one.
        if not isinstance(target, ast.Name) or keyword(iterated, "destination"):
            continue
        if any(_as_array(source, node, target.id) for part in where for node in ast.walk(part)):
            yield (
                iterated,
                f"{target.id!r} is a pair of name and array, not an array: write `for name, "
                f"{target.id} in tree_flatten(...)`",
            )


def _loops(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, list[ast.AST]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            yield node.target, node.iter, list(node.body)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            for one in node.generators:
                yield one.target, one.iter, [node.elt, *one.ifs]


def _as_array(source: SourceFile, node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == name and node.attr in OF_ARRAYS
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Name):
        first = node.args[0].id == name
        called = source.name_of(node.func)
        if called == "isinstance" and first:
            return len(node.args) > 1 and source.name_of(node.args[1]) == "mlx.core.array"
        return first and called.startswith("mlx.core.")
    return False
