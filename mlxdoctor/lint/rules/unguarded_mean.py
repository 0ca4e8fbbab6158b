"""Division by a mask's sum, which is zero for a batch with nothing to learn.

One batch whose answers were all cut off gives 0/0, the NaN goes into every weight, and the model
is lost. The longer the prompts and the shorter the limit, the sooner.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

#: Packages whose arrays a part of a file may mean.
OTHERS = frozenset(("torch", "tensorflow", "jax"))
BAD = """
import mlx.core as mx

def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()
"""
GOOD = """
import mlx.core as mx

def masked_mean(losses, mask):
    return (losses * mask).sum() / mx.maximum(mask.sum(), 1)
"""


#: What the mean of a loss is called, or computed from.
_LOSSES = re.compile(
    r"loss|(?:^|_)(?:ce|nll|kl|xent|logps?|log_?probs?|scores?)(?:$|_)|cross_entropy"
)


@rule(
    severity=Severity.WARNING,
    symptom="step-forward.not-finite",
    bad=BAD,
    good=GOOD,
    words=("mask", "sum(", "loss|nll|logp|log_p|cross_entropy|_scores|kl"),
)
def unguarded_mean(source: SourceFile) -> Hits:
    """A loss divided by a sum of something called a mask, or by a name for one, and no guard.

    A mask that pools hidden states has always something to pool.
    """
    for node in source.of(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        sums = source.values(node.right)
        masks = [_mask_of_sum(source, one) for one in sums]
        if not all(masks) or not _is_loss(source, node.left):
            continue
        scope = source.scope(node)
        used = source.packages(scope)
        if used & OTHERS or used == {"numpy"} or _is_guarded(source, scope, node):
            continue
        yield node, f"{ast.unparse(node.right)} is zero for a batch without a target: 0/0 is NaN"


def _mask_of_sum(source: SourceFile, node: ast.expr) -> str:
    """The mask whose sum a value is, as any type; empty where it is something else."""
    if source.is_call(node, ".astype") and isinstance(node.func, ast.Attribute):
        inner = [_mask_of_sum(source, one) for one in source.values(node.func.value)]
        return inner[0] if all(inner) else ""
    if source.is_call(node, "mlx.core.sum") and node.args:
        return _mask(node.args[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _mask(node.func.value) if node.func.attr == "sum" else ""
    return ""


def _mask(node: ast.expr) -> str:
    """A name with "mask" in it, as any type; not a product, whose sum may well be weighted."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _mask(node.func.value) if node.func.attr == "astype" else ""
    named = isinstance(node, ast.Name | ast.Attribute) and "mask" in ast.unparse(node).lower()
    return ast.unparse(node) if named else ""


def _is_loss(source: SourceFile, node: ast.expr) -> bool:
    """Whether a dividend is called as losses are, or summed up from what is."""
    names = source.of(ast.Name, ast.Attribute, within=node)
    said = [one.id if isinstance(one, ast.Name) else one.attr for one in names]
    return any(_LOSSES.search(one.lower()) for one in said)


def _is_guarded(source: SourceFile, scope: ast.AST, node: ast.BinOp) -> bool:
    """Whether a condition of the function looks at the count, or at what the mask holds."""
    counts = {ast.unparse(node.right)}
    masks = {_mask_of_sum(source, one) for one in source.values(node.right)}
    tests = [one.test for one in source.of(ast.If, ast.IfExp, ast.While, within=scope)]
    tests += [one.test for one in source.of(ast.Assert, within=scope)]
    tests += [one.args[0] for one in source.calls("mlx.core.where", within=scope) if one.args]
    for test in tests:
        # `if mask is not None` says nothing of what is in it.
        is_none = {
            compare.left
            for compare in source.of(ast.Compare, within=test)
            if isinstance(compare.ops[0], ast.Is | ast.IsNot)
        }
        for one in source.of(ast.Name, ast.Attribute, ast.Call, within=test):
            if one in is_none:
                continue
            said = ast.unparse(one)
            if said in counts or any(
                said.startswith(f"{mask}.") or (isinstance(one, ast.Call) and mask in said)
                for mask in masks
            ):
                return True
    return False
