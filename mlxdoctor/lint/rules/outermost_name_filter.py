"""Parameters or gradients filtered by the outermost names of their tree.

Gradients and parameters are nested dicts: the outermost names are `model` and `lm_head`, and none
of them has "lora" in it. Such a filter keeps nothing, and an update with nothing changes nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import model_updates
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def update(model, optimizer, grads):
    lora = {name: grad for name, grad in grads.items() if "lora" in name}
    optimizer.update(model, lora)
"""
_NESTED = (".parameters", ".trainable_parameters")
GOOD = """
import mlx.core as mx

def update(model, optimizer, grads):
    optimizer.update(model, grads)
"""


@rule(
    severity=Severity.ERROR,
    symptom="step-update.nothing-changed",
    bad=BAD,
    good=GOOD,
    words=("lora|LoRA", ".items()"),
)
def outermost_name_filter(source: SourceFile) -> Hits:
    """`.items()` of a nested tree, and a test for "lora" in the name."""
    for node in source.of(ast.For, ast.comprehension):
        target = node.target
        if not (isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)):
            continue
        where = node.ifs if isinstance(node, ast.comprehension) else node.body
        name = target.elts[0].id
        if any(_tests_lora(source, one, name) for one in where) and _is_nested(source, node.iter):
            yield (
                node.iter,
                "these are the outermost names of a nested tree, none of which has 'lora' in "
                "it: only what is trainable has a gradient, so pass the tree as it is",
            )


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    """`X.items()` where X are gradients as they come, or `parameters()`."""
    if not source.is_call(node, ".items") or not isinstance(node.func, ast.Attribute):
        return False
    held = node.func.value
    values = source.values(held)
    if all(source.is_call(one, *_NESTED) or _is_gradient(source, one) for one in values):
        return True
    # A parameter is what it is called, where it goes to an optimizer, which takes nested trees.
    named = isinstance(held, ast.Name) and held.id.lower() in {"grads", "grad", "gradients"}
    scope = source.scope(node)
    walks = any(source.calls("isinstance", "mlx.utils.tree_flatten", within=scope))
    if not named or values != [held] or walks:
        return False
    return any(source.calls(".update", within=scope)) or _goes_to_optimizer(source, scope)


def _goes_to_optimizer(source: SourceFile, function: ast.AST) -> bool:
    """Whether an optimizer is given what a function returns."""
    return any(
        isinstance(one, ast.Call) and source.function_named(one.func) is function
        for call in model_updates(source)
        for one in source.values(call.args[1])
    )


def _is_gradient(source: SourceFile, node: ast.expr) -> bool:
    """Whether a value is the second of what a function from `value_and_grad` returned."""
    if not (isinstance(node, ast.Subscript) and constant(node.slice) == 1):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return called is not None and any(
        source.is_call(one, "mlx.nn.value_and_grad", "mlx.core.value_and_grad")
        for one in source.values(called)
    )


def _tests_lora(source: SourceFile, tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(node.ops[0], ast.In)
        and isinstance(node.left, ast.Constant)
        and "lora" in str(node.left.value).lower()
        and any(one.id == name for one in source.of(ast.Name, within=node))
        for node in source.of(ast.Compare, within=tree)
    )
