"""A mask that is one position off for targets that are shifted by one.

Position i of the inputs is trained on token i + 1. In a row of n tokens the last position with a
target is therefore n - 2, and a mask made for the inputs (`arange(width) < lengths`, or
`mask[:, :-1]`) goes one further: the row's last token is trained to be followed by padding. Where
padding is the end token this can be meant; where it is not, the model learns to emit padding.
One position too few is as easily made, and leaves the end token untrained.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given_here, resolved, returned
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

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
#: Calls that hand on the first of their arguments, as far as places along the sequence go.
_SAME = (
    "mlx.core.array", "mlx.core.minimum", "mlx.core.expand_dims", "mlx.core.broadcast_to",
    "mlx.core.repeat", "mlx.core.tile",
)  # fmt: skip
_SAME_METHODS = ("astype", "reshape", "squeeze")


@rule(
    severity=Severity.WARNING,
    symptom="step-alignment.padding-target",
    bad=BAD,
    good=GOOD,
    words=("cross_entropy",),
)
def mask_off_by_one(source: SourceFile) -> Hits:
    """The factor of a cross-entropy of shifted targets: a comparison of positions with lengths, or
    a mask without its last column.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2 or not _is_shifted(source, call.args[1]):
            continue
        for mask in _factors(source, call):
            for node, off, shown in _ends(source, mask):
                yield node, _said(off, shown)
                break


def _said(off: int, shown: str) -> str:
    if off > 0:
        return (
            f"{shown} marks the last token of a row as an input to train, and its target is "
            "padding: end the mask one position earlier"
        )
    return (
        f"{shown} ends before the last target of a row, its end token: let the mask go one "
        "position further"
    )


def _is_shifted(source: SourceFile, targets: ast.expr) -> bool:
    """Whether targets are `x[:, 1:]`."""
    return _column_slice(resolved(source, targets)) == (1, None)


def _column_slice(node: ast.expr) -> tuple[object, object] | None:
    """(a, b) of `[:, a:b]`."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return None
    parts = node.slice.elts
    if len(parts) != 2 or not all(isinstance(one, ast.Slice) for one in parts):
        return None
    row, column = parts
    assert isinstance(row, ast.Slice)
    assert isinstance(column, ast.Slice)
    if row.lower is not None or row.upper is not None or column.step is not None:
        return None
    bounds = (column.lower, column.upper)
    values = tuple(None if one is None else constant(one) for one in bounds)
    if any(one is not None and value is None for one, value in zip(bounds, values, strict=True)):
        return None
    return values[0], values[1]


def _factors(source: SourceFile, call: ast.Call) -> Iterator[ast.expr]:
    """What the losses are multiplied with: at once, or under the name they are given."""
    weights = keyword(call, "weights")
    if weights is not None:
        yield weights
    losses: list[ast.AST] = [call]
    for one in losses:
        yield from _multiplied(source, one)
        above = _up(source, one)
        if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
            name = above.targets[0].id
            losses += [
                node
                for node in source.of(ast.Name, within=source.scope(call))
                if node.id == name
                and isinstance(node.ctx, ast.Load)
                and above.value in given_here(source, node)
                and node not in losses
            ]


def _up(source: SourceFile, node: ast.AST) -> ast.AST | None:
    """The node above: minus signs and changes of type left out."""
    above = source.parents.get(node)
    while isinstance(above, ast.UnaryOp | ast.Attribute) or (
        isinstance(above, ast.Call)
        and isinstance(above.func, ast.Attribute)
        and above.func.attr in (*_SAME_METHODS, "clip", "maximum", "minimum")
    ):
        above = source.parents.get(above)
    return above


def _multiplied(source: SourceFile, node: ast.AST) -> Iterator[ast.expr]:
    below, above = node, source.parents.get(node)
    while isinstance(above, ast.BinOp | ast.UnaryOp):
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
            yield above.right if above.left is below else above.left
        below, above = above, source.parents.get(above)
    chosen = above is not None and source.is_call(above, "mlx.core.where")
    if chosen and isinstance(above, ast.Call) and above.args[1:2] == [below]:
        yield above.args[0]


def _ends(source: SourceFile, mask: ast.expr) -> Iterator[tuple[ast.expr, int, str]]:
    """The parts of a mask that say where rows end, and by how many positions that is off."""
    node = resolved(source, mask)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _SAME_METHODS:
            break
        node = resolved(source, node.func.value)
    if source.is_call(node, "mlx.core.logical_and") or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.Mult)
    ):
        both = node.args if isinstance(node, ast.Call) else [node.left, node.right]
        for one in both[:2]:
            yield from _ends(source, one)
    elif isinstance(node, ast.Call) and _hands_lengths(node):
        # A helper of this file, whose own parameter is called a length as well.
        function = source.function_named(node.func)
        for one in returned(source, function) if function is not None else []:
            yield from ((node, off, shown) for _, off, shown in _ends(source, one))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        off = _off(source, node)
        if off in (-1, 1):
            yield node, off, ast.unparse(node)
    elif _column_slice(node) == (None, -1) and isinstance(node, ast.Subscript):
        held = node.value
        if isinstance(held, ast.Name) and "mask" in held.id.lower() and _is_of_rows(source, held):
            yield node, 1, ast.unparse(node)


def _hands_lengths(call: ast.Call) -> bool:
    """Whether a call is given lengths as they are."""
    return any(isinstance(one, ast.Name) and "len" in one.id.lower() for one in call.args)


def _is_of_rows(source: SourceFile, mask: ast.Name) -> bool:
    """Whether a mask comes as it is from outside, one mark a token."""
    values = given_here(source, mask)
    return all(isinstance(one, ast.Subscript) for one in values)


def _off(source: SourceFile, node: ast.Compare) -> int | None:
    """How many positions too many `positions < lengths` marks; None where that cannot be told."""
    left, op, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(op, ast.Gt | ast.GtE):
        left, right = right, left
    elif not isinstance(op, ast.Lt | ast.LtE):
        return None
    first, fewer = _first_position(source, left), _fewer(source, right)
    if first is None or fewer is None:
        return None
    inclusive = isinstance(op, ast.LtE | ast.GtE)
    return (2 if inclusive else 1) - (first + fewer)


def _first_position(source: SourceFile, node: ast.expr, depth: int = 6) -> int | None:
    """What positions begin with: a of `arange(a, ...)`."""
    node = resolved(source, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and depth:
        first, more = _first_position(source, node.left, depth - 1), constant(node.right)
        if first is None or not isinstance(more, int):
            return None
        return first + more if isinstance(node.op, ast.Add) else first - more
    if isinstance(node, ast.Subscript):
        return _first_position(source, node.value, depth - 1) if depth else None
    if source.is_call(node, "mlx.core.arange"):
        first_of = 0 if len(node.args) < 2 else constant(node.args[0])
        return first_of if isinstance(first_of, int) and len(node.args) < 3 else None
    inner = _inner(source, node)
    return _first_position(source, inner, depth - 1) if inner is not None and depth else None


def _fewer(source: SourceFile, node: ast.expr, depth: int = 6) -> int | None:
    """How many fewer than a row's tokens a length says; None where it is no length of rows."""
    if not depth:
        return None
    if isinstance(node, ast.Name):
        values = given_here(source, node)
        if values:
            return _fewer(source, values[0], depth - 1)
        return 0 if "len" in node.id.lower() and not _is_of_targets(node.id) else None
    if isinstance(node, ast.Attribute):
        return 0 if "lengths" in node.attr.lower() else None
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return 0 if "lengths" in node.slice.value.lower() else None
        return _fewer(source, node.value, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        held, more = _fewer(source, node.left, depth - 1), constant(node.right)
        if held is None or not isinstance(more, int):
            return None
        return held - more if isinstance(node.op, ast.Add) else held + more
    summed = _summed(source, node)
    if summed is not None:
        of_rows = (isinstance(summed, ast.Name) and _is_attention(summed)) or (
            _column_slice(summed) == (None, -1)
            and isinstance(summed, ast.Subscript)
            and _is_attention(summed.value)
        )
        return 0 if of_rows else None
    inner = _inner(source, node)
    return _fewer(source, inner, depth - 1) if inner is not None else None


def _is_of_targets(name: str) -> bool:
    return any(word in name.lower() for word in ("target", "label", "completion", "response"))


def _is_attention(node: ast.expr) -> bool:
    return "attention_mask" in ast.unparse(node)


def _summed(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """What a sum is of, with names resolved."""
    if source.is_call(node, "mlx.core.sum") and node.args:
        return resolved(source, node.args[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return resolved(source, node.func.value) if node.func.attr == "sum" else None
    return None


def _inner(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """What a call hands on with another shape or type."""
    if source.is_call(node, *_SAME):
        return node.args[0] if node.args else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in _SAME_METHODS else None
    return None
