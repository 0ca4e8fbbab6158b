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


@rule(
    severity=Severity.ERROR,
    symptom="step-update.nothing-changed",
    bad=BAD,
    good=GOOD,
    words=("tree_flatten",),
)
def flattened_as_arrays(source: SourceFile) -> Hits:
    """A loop over pairs whose variable is used as an array."""
    if not any(source.calls("mlx.utils.tree_flatten")):
        return
    for loop, target, iterated in _loops(source):
        flattened = source.values(iterated)
        # With a destination it gives a dict or fills one.
        if not isinstance(target, ast.Name) or not all(
            source.is_call(one, "mlx.utils.tree_flatten") and not keyword(one, "destination")
            for one in flattened
        ):
            continue
        uses = [one for one in source.of(ast.Name, within=loop) if one.id == target.id]
        if any(_is_array(source, one) for one in uses if _is_of(source, one, target)):
            yield (
                iterated,
                f"{target.id!r} is a pair of name and array, not an array: write `for name, "
                f"{target.id} in tree_flatten(...)`",
            )


def _loops(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """What runs through something: the loop, its variable, what it runs through."""
    for node in source.of(ast.For):
        yield node, node.target, node.iter
    for one in source.of(ast.comprehension):
        yield source.parents[one], one.target, one.iter


def _is_of(source: SourceFile, use: ast.Name, target: ast.Name) -> bool:
    """Whether a name still is the loop's variable: not `pair = pair[1]` above it."""
    return all(source.is_within(target, one.node) for one in source.given(use))


def _is_array(source: SourceFile, use: ast.Name) -> bool:
    parent = source.parents.get(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in OF_ARRAYS
    if isinstance(parent, ast.Call) and parent.args[:1] == [use]:
        called = source.name_of(parent.func)
        if called == "isinstance":
            return len(parent.args) > 1 and source.name_of(parent.args[1]) == "mlx.core.array"
        return called.startswith("mlx.core.")
    return False
