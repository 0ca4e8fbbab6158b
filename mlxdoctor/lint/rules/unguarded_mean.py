"""Division by a mask's sum, which is zero for a batch with nothing to learn.

One batch whose answers were all cut off gives 0/0, the NaN goes into every weight, and the model
is lost. The longer the prompts and the shorter the limit, the sooner.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, last_name

BAD = """
import mlx.core as mx

def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()
"""
GOOD = BAD.replace("/ mask.sum()", "/ mx.maximum(mask.sum(), 1)")
#: Packages whose arrays a part of a file may mean.
_OTHERS = frozenset(("torch", "tensorflow", "jax"))
#: What the mean of a loss is called, or computed from.
_LOSSES = re.compile(
    r"loss|(?:^|_)(?:ce|nll|kl|xent|logps?|log_?probs?|scores?)(?:$|_)|cross_entropy"
)


@rule(Severity.WARNING, BAD, GOOD, symptoms=("step-forward.not-finite",))
def unguarded_mean(source: SourceFile) -> Hits:
    """A loss divided by a sum of something called a mask, or by a name for one, and no guard.

    A mask that pools hidden states has always something to pool.
    """
    for node in source.of(ast.BinOp):
        if not isinstance(node.op, ast.Div) or not _is_loss(source, node.left):
            continue
        masks = [_summed_mask(source, value) for value in source.values(node.right)]
        if not all(masks):
            continue
        used = source.imports.keys() & source.names_in(source.scope(node))
        packages = {source.imports[name].partition(".")[0] for name in used}
        if not (packages & _OTHERS or packages == {"numpy"} or _is_guarded(source, node, masks)):
            count = ast.unparse(node.right)
            yield node, f"{count} is zero for a batch without a target: 0/0 is NaN"


def _is_loss(source: SourceFile, node: ast.expr) -> bool:
    """Whether a dividend is called as losses are, or summed up from what is."""
    names = source.of(ast.Name, ast.Attribute, within=node)
    return any(_LOSSES.search(last_name(name).lower()) for name in names)


def _summed_mask(source: SourceFile, node: ast.expr) -> str:
    """The mask whose sum a value is, as any type; empty where it is something else."""
    match node:
        case ast.Call(func=ast.Attribute(attr="astype", value=held)):
            masks = [_summed_mask(source, value) for value in source.values(held)]
            return masks[0] if all(masks) else ""
        case ast.Call(args=[held, *_]) if source.is_call(node, "mlx.core.sum"):
            return _mask(held)
        case ast.Call(func=ast.Attribute(attr="sum", value=held)):
            return _mask(held)
    return ""


def _mask(node: ast.expr) -> str:
    """A name with "mask" in it, as any type; not a product, whose sum may well be weighted."""
    match node:
        case ast.Call(func=ast.Attribute(attr="astype", value=held)):
            return _mask(held)
        case ast.Name() | ast.Attribute() if "mask" in ast.unparse(node).lower():
            return ast.unparse(node)
    return ""


def _is_guarded(source: SourceFile, division: ast.BinOp, masks: list[str]) -> bool:
    """Whether a condition of the function looks at the count, or at what the mask holds."""
    scope, count = source.scope(division), ast.unparse(division.right)
    tests = [node.test for node in source.of(ast.If, ast.IfExp, within=scope)]
    tests += [node.test for node in source.of(ast.While, ast.Assert, within=scope)]
    tests += [call.args[0] for call in source.calls("mlx.core.where", within=scope) if call.args]
    # `if mask is not None` says nothing of what is in it.
    looks = [rf"{re.escape(mask)}\.|\([^()]*{re.escape(mask)}" for mask in masks]
    pattern = re.compile("|".join([rf"(?<!\w){re.escape(count)}(?!\w)", *looks]))
    return any(pattern.search(ast.unparse(test)) for test in tests)
