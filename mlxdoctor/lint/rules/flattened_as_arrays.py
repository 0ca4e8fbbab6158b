"""What `tree_flatten` gives, taken for arrays, or for leaves and structure as in JAX.

It gives one list of pairs of name and array. Code that tests each for being an array skips them all
in silence: norms of zero are reported, non-finite gradients pass, counts are zero. `[1]` is the
second pair, and unpacking into two fails, or takes two pairs for something else.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, keyword

BAD = """
from mlx.utils import tree_flatten

def norm(grads):
    return sum(g.square().sum() for g in tree_flatten(grads))
"""
GOOD = BAD.replace("for g in", "for _, g in")
#: Attributes of arrays that pairs do not have.
_OF_ARRAYS = frozenset(
    {"size", "shape", "dtype", "nbytes", "ndim", "item", "astype", "square", "sum", "mean", "abs"}
)


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.nothing-changed",))
def flattened_as_arrays(source: SourceFile) -> Hits:
    """A loop over pairs whose variable is used as an array; an index of 1 that is not asked for the
    parts of a pair; two names as targets.
    """
    flattened = set(source.calls("mlx.utils.tree_flatten"))
    for loop, target, iterated in _loops(source) if flattened else ():
        # With a destination it gives a dict or fills one.
        if not isinstance(target, ast.Name) or not all(
            value in flattened and isinstance(value, ast.Call) and not keyword(value, "destination")
            for value in source.values(iterated)
        ):
            continue
        uses = [name for name in source.of(ast.Name, within=loop) if name.id == target.id]
        if any(_is_array(source, use) for use in uses if _is_variable(source, use, target)):
            yield (
                iterated,
                f"{target.id!r} is a pair of name and array, not an array: write `for name, "
                f"{target.id} in tree_flatten(...)`",
            )
    for call in flattened:
        yield from _as_in_jax(source, call)


def _loops(source: SourceFile) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """What runs through something: the loop, its variable, what it runs through."""
    for node in source.of(ast.For, ast.comprehension):
        whole = source.parent(node) if isinstance(node, ast.comprehension) else node
        yield whole or node, node.target, node.iter


def _is_variable(source: SourceFile, use: ast.Name, target: ast.Name) -> bool:
    """Whether a name still is the loop's variable: not `pair = pair[1]` above it."""
    return all(source.is_within(target, binding.node) for binding in source.given(use))


def _is_array(source: SourceFile, use: ast.Name) -> bool:
    parent = source.parent(use)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _OF_ARRAYS
    if isinstance(parent, ast.Call) and parent.args[:1] == [use]:
        called = source.name_of(parent.func)
        if called == "isinstance":
            return len(parent.args) > 1 and source.name_of(parent.args[1]) == "mlx.core.array"
        return called.startswith("mlx.core.")
    return False


def _as_in_jax(source: SourceFile, call: ast.Call) -> Hits:
    match parent := source.parent(call):
        case ast.Subscript() if constant(parent.slice) == 1:
            if not isinstance(source.parent(parent), ast.Subscript):
                yield (
                    parent,
                    "[1] is the second pair of name and array; the arrays are the second of each "
                    "pair",
                )
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(), ast.Name()])]):
            yield parent, "tree_flatten returns one list of pairs, not leaves and structure"
