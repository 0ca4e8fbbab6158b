"""Parameters or gradients filtered by the outermost names of their tree.

Gradients and parameters are nested dicts: the outermost names are `model` and `lm_head`, and none
of them has "lora" in it. Such a filter keeps nothing, and an update with nothing changes nothing.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, assigned, names_in
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def update(model, optimizer, grads):
    lora = {name: grad for name, grad in grads.items() if "lora" in name}
    optimizer.update(model, lora)
"""
GOOD = """
def update(model, optimizer, grads):
    optimizer.update(model, grads)
"""


@rule(severity=Severity.ERROR, symptom="step-update.nothing-changed", bad=BAD, good=GOOD)
def outermost_name_filter(source: SourceFile) -> Hits:
    """`.items()` of a nested tree, and a test for "lora" in the name."""
    for node in source.nodes:
        if isinstance(node, ast.For):
            loops = [(node.target, node.iter, list[ast.AST](node.body))]
        elif isinstance(node, ast.DictComp | ast.ListComp | ast.GeneratorExp | ast.SetComp):
            loops = [(one.target, one.iter, list[ast.AST](one.ifs)) for one in node.generators]
        else:
            continue
        for target, iterated, where in loops:
            if not (isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)):
                continue
            name = target.elts[0].id
            if _is_nested(source, iterated) and any(_tests_lora(one, name) for one in where):
                yield (
                    iterated,
                    "these are the outermost names of a nested tree, none of which has 'lora' in "
                    "it: only what is trainable has a gradient, so pass the tree as it is",
                )


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    """`X.items()` where X are gradients as they come, or `parameters()`."""
    if not source.is_call(node, ".items"):
        return False
    held = node.func.value if isinstance(node.func, ast.Attribute) else None
    if source.is_call(held or node, ".parameters", ".trainable_parameters"):
        return True
    if not isinstance(held, ast.Name):
        return False
    sources = assigned(source.scope(node), held.id)
    if any(source.is_call(one, "dict", "mlx.utils.tree_flatten") for one in sources):
        return False
    if any(source.is_call(one, ".parameters", ".trainable_parameters") for one in sources):
        return True
    return held.id.lower().rstrip("s").endswith(("grad", "gradient"))


def _tests_lora(tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In)
        and isinstance(node.left, ast.Constant)
        and "lora" in str(node.left.value).lower()
        and name in names_in(node)
        for node in ast.walk(tree)
    )
