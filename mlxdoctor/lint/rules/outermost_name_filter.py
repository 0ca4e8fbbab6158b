"""Parameters or gradients filtered by the outermost names of their tree.

Gradients and parameters are nested dicts: the outermost names are `model` and `lm_head`, and none
of them has "lora" in it. Such a filter keeps nothing, and an update with nothing changes nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant

BAD = """
import mlx.core as mx

def update(model, optimizer, grads):
    lora = {name: grad for name, grad in grads.items() if "lora" in name}
    optimizer.update(model, lora)
"""
GOOD = """
import mlx.core as mx

def update(model, optimizer, grads):
    optimizer.update(model, grads)
"""


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-update.nothing-changed",))
def outermost_name_filter(source: SourceFile) -> Hits:
    """`.items()` of a nested tree, and a test for "lora" in the name."""
    for loop in source.of(ast.For, ast.comprehension):
        match loop.target:
            case ast.Tuple(elts=[ast.Name(id=name), *_]):
                where = loop.ifs if isinstance(loop, ast.comprehension) else loop.body
                tested = any(_tests_lora(source, node, name) for node in where)
                if tested and _is_nested(source, loop.iter):
                    yield (
                        loop.iter,
                        "these are the outermost names of a nested tree, none of which has 'lora' "
                        "in it: only what is trainable has a gradient, so pass the tree as it is",
                    )


def _tests_lora(source: SourceFile, tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(test.ops[0], ast.In)
        and "lora" in str(constant(test.left)).lower()
        and name in source.names_in(test)
        for test in source.of(ast.Compare, within=tree)
    )


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    """`X.items()` where X are gradients as they come, or `parameters()`."""
    if not (source.is_call(node, ".items") and isinstance(node.func, ast.Attribute)):
        return False
    held = node.func.value
    values = source.values(held)
    if source.are_parameters(held) or all(_is_gradient(source, value) for value in values):
        return True
    # A parameter is what it is called, where it goes to an optimizer, which takes nested trees.
    named = isinstance(held, ast.Name) and held.id.lower() in {"grads", "grad", "gradients"}
    scope = source.scope(node)
    if (
        not named
        or values != [held]
        or any(source.calls("isinstance", "mlx.utils.tree_flatten", within=scope))
    ):
        return False
    return any(source.calls(".update", within=scope)) or any(
        isinstance(value, ast.Call) and source.function(value.func) is scope
        for update in source.updates()
        for value in source.values(update.args[1])
    )


def _is_gradient(source: SourceFile, node: ast.expr) -> bool:
    """Whether a value is the second of what a function from `value_and_grad` returned."""
    match node:
        case ast.Subscript(value=ast.Call(func=called), slice=ast.Constant(value=1)):
            return any(
                source.is_call(value, "mlx.nn.value_and_grad", "mlx.core.value_and_grad")
                for value in source.values(called)
            )
    return False
