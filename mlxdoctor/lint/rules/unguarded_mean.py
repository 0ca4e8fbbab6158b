"""Division by a mask's sum, which is zero for a batch with nothing to learn.

One batch whose answers were all cut off gives 0/0, the NaN goes into every weight, and the model
is lost. The longer the prompts and the shorter the limit, the sooner.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile, assigned, names_in
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()
"""
GOOD = """
import mlx.core as mx

def masked_mean(losses, mask):
    return (losses * mask).sum() / mx.maximum(mask.sum(), 1)
"""


@rule(severity=Severity.WARNING, symptom="step-forward.not-finite", bad=BAD, good=GOOD)
def unguarded_mean(source: SourceFile) -> Hits:
    """A divisor that is a sum of something called a mask, or a name for one, and no guard."""
    for node in source.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        scope = source.scope(node)
        divisor = node.right
        name = divisor.id if isinstance(divisor, ast.Name) else None
        sums = assigned(scope, name) if name is not None else [divisor]
        if not sums or not all(_is_mask_sum(source, one) for one in sums):
            continue
        if name is not None and _is_guarded(scope, name):
            continue
        yield node, f"{ast.unparse(divisor)} is zero for a batch without a target: 0/0 is NaN"


def _is_mask_sum(source: SourceFile, node: ast.expr) -> bool:
    if source.is_call(node, ".astype"):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else node
        return _is_mask_sum(source, inner)
    if source.is_call(node, "mlx.core.sum") and node.args:
        return "mask" in ast.unparse(node.args[0]).lower()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "sum" and _is_mask(node.func.value)
    return False


def _is_mask(node: ast.expr) -> bool:
    """A name with "mask" in it, as any type; not a product, whose sum may well be weighted."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "astype" and _is_mask(node.func.value)
    return isinstance(node, ast.Name | ast.Attribute) and "mask" in ast.unparse(node).lower()


def _is_guarded(scope: ast.AST, name: str) -> bool:
    """Whether some condition of the function looks at it."""
    tests = [
        node.test for node in ast.walk(scope) if isinstance(node, ast.If | ast.IfExp | ast.Assert)
    ]
    return isinstance(scope, Function) and any(name in names_in(test) for test in tests)
