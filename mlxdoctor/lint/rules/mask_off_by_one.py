"""A mask that is one position off for targets that are shifted by one.

Position i of the inputs is trained on token i + 1. In a row of n tokens the last position with a
target is therefore n - 2, and a mask made for the inputs (`arange(width) < lengths`, or
`mask[:, :-1]`) goes one further: the row's last token is trained to be followed by padding. Where
padding is the end token this can be meant; where it is not, the model learns to emit padding.
One position too few is as easily made, and leaves the end token untrained.
"""

import ast
import re
from collections.abc import Callable, Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, last_name

BAD = """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, batch, lengths):
    inputs, targets = batch[:, :-1], batch[:, 1:]
    mask = mx.arange(targets.shape[1])[None, :] < lengths[:, None]
    losses = nn.losses.cross_entropy(model(inputs), targets) * mask
    return losses.sum() / mx.maximum(mask.sum(), 1)
"""
GOOD = BAD.replace("< lengths[:, None]", "< lengths[:, None] - 1")
#: Methods and functions that return what they are given, with another shape, type or range.
_SAME = ("astype", "reshape", "squeeze", "expand_dims", "clip", "maximum", "minimum")
_LENGTHS = re.compile(r"(?!.*(?:target|label|completion|response)).*len")
_DEPTH = 6


@rule(Severity.WARNING, BAD, GOOD, symptoms=("step-alignment.padding-target",))
def mask_off_by_one(source: SourceFile) -> Hits:
    """The factor of a cross-entropy of shifted targets: a comparison of positions with lengths, or
    a mask without its last column.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2 or _columns(source.values(call.args[1])[0]) != ("1", ""):
            continue
        ends = (_end(source, mask) for mask in _factors(source, call))
        for node, excess in (end for end in ends if end is not None):
            effect = (
                "marks the last token of a row as an input to train, and its target is padding: "
                "end the mask one position earlier"
                if excess > 0
                else "ends before the last target of a row, its end token: let the mask go one "
                "position further"
            )
            yield node, f"{ast.unparse(node)} {effect}"
            break


def _columns(node: ast.expr) -> tuple[str, str] | None:
    """("a", "b") of `x[:, a:b]`, each empty where it is left out."""
    match node:
        case ast.Subscript(
            slice=ast.Tuple(elts=[ast.Slice(lower=None, upper=None), ast.Slice(step=None) as part])
        ):
            bounds = (part.lower, part.upper)
            first, end = ("" if bound is None else ast.unparse(bound) for bound in bounds)
            return first, end
    return None


def _factors(source: SourceFile, call: ast.Call) -> Iterator[ast.expr]:
    """What the losses are multiplied with: at once, or under the names they are given."""
    losses: list[ast.AST] = [call]
    for node in losses:
        below, above = node, source.parent(node)
        while isinstance(above, ast.BinOp | ast.UnaryOp | ast.Attribute) or (
            isinstance(above, ast.Call) and last_name(above) in _SAME
        ):
            if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
                yield above.right if above.left is below else above.left
            below, above = above, source.parent(above)
        if isinstance(above, ast.Assign):
            names = source.names_by_value.get(above.value, [])
            losses += [name for name in names if name not in losses]


def _end(source: SourceFile, mask: ast.expr) -> tuple[ast.expr, int] | None:
    """The part of a mask that says where rows end, and by how many positions that is off."""
    parts = list(source.parts(mask))
    for call in (part for part in parts if isinstance(part, ast.Call)):
        # A helper of this file that is given lengths, under a name that says so.
        helper = source.function(call.func)
        if helper is not None and any(_LENGTHS.match(last_name(a).lower()) for a in call.args):
            parts += [part for value in source.returned(helper) for part in source.parts(value)]
    compared = [(part, _excess(source, part)) for part in parts if isinstance(part, ast.Compare)]
    for part, excess in compared:
        if excess is not None and abs(excess) == 1:
            return part, excess
    if any(excess is not None for _, excess in compared):
        return None
    for cut in parts:
        is_mask = isinstance(cut, ast.Subscript) and "mask" in last_name(cut.value).lower()
        if is_mask and _columns(cut) == ("", "-1"):
            return cut, 1
    return None


def _excess(source: SourceFile, node: ast.Compare) -> int | None:
    """How many positions too many `positions < lengths` marks; None where that cannot be told."""
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.Gt | ast.GtE):
        left, right = right, left
    elif not isinstance(node.ops[0], ast.Lt | ast.LtE):
        return None
    first = _counted(source, left, _first_position)
    length = _counted(source, right, _length)
    if first is None or length is None:
        return None
    last = length if isinstance(node.ops[0], ast.LtE | ast.GtE) else length - 1
    # Of n tokens the last to be marked is number n - 2.
    return last - first + 2


def _counted(
    source: SourceFile, node: ast.expr, start: Callable[[SourceFile, ast.expr], int | None]
) -> int | None:
    """What an expression counts from: the start of what is in it, plus what is added to that."""
    added = 0
    for _ in range(_DEPTH):
        node = source.values(node)[0]
        if (first := start(source, node)) is not None:
            return first + added
        match node:
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                number = constant(node.right)
                if not isinstance(number, int):
                    return None
                added += number if isinstance(node.op, ast.Add) else -number
                node = node.left
            case ast.Subscript(value=held):
                node = held
            case ast.Call(func=ast.Attribute(value=ast.Name(id="mx")), args=[held, *_]):
                node = held
            case ast.Call(func=ast.Attribute(value=held, attr=name)) if name in _SAME:
                node = held
            case _:
                return None
    return None


def _first_position(source: SourceFile, node: ast.expr) -> int | None:
    """a of `mx.arange(a, b)`."""
    if not source.is_call(node, "mlx.core.arange"):
        return None
    first = constant(node.args[0]) if len(node.args) > 1 else 0
    return first if isinstance(first, int) else None


def _length(source: SourceFile, node: ast.expr) -> int | None:
    """0 where an expression is the number of a row's tokens."""
    if source.is_call(node, ".sum", "mlx.core.sum"):
        return 0 if "attention_mask" in ast.unparse(node) else None
    return 0 if _LENGTHS.match(last_name(node).lower()) else None
