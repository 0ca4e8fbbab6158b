"""Which tokens are trained: targets and masks."""

import ast
import re
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, last_name

#: Methods and functions that return what they are given, with another shape, type or range.
_SAME = ("astype", "reshape", "squeeze", "expand_dims", "clip", "maximum", "minimum")
_LENGTHS = re.compile(r"(?!.*(?:target|label|completion|response)).*len")
#: Expressions are followed this far down.
_DEPTH = 8


@rule(
    Severity.WARNING,
    """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, batch, lengths):
    inputs, targets = batch[:, :-1], batch[:, 1:]
    mask = mx.arange(targets.shape[1])[None, :] < lengths[:, None]
    losses = nn.losses.cross_entropy(model(inputs), targets) * mask
    return losses.sum() / mx.maximum(mask.sum(), 1)
""",
    {"< lengths[:, None]": "< lengths[:, None] - 1"},
)
def mask_off_by_one(source: SourceFile) -> Hits:
    """A mask that is one position off for targets that are shifted by one.

    Position i of the inputs is trained on token i + 1. In a row of n tokens the last position with
    a target is therefore n - 2, and a mask made for the inputs (`arange(width) < lengths`, or
    `mask[:, :-1]`) goes one further: the row's last token is trained to be followed by padding.
    Where padding is the end token this can be meant; where it is not, the model learns to emit
    padding.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2 or _columns(source.values(call.args[1])[0]) != ("1", ""):
            continue
        for mask in _factors(source, call):
            if (end := _late_end(source, mask)) is not None:
                fault = f"{ast.unparse(end)} marks the last token of a row as an input to train"
                yield end, f"{fault}, and its target is padding: end the mask one position earlier"
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
            names = source.names_of.get(above.value, ())
            losses += [name for name in names if name not in losses]


def _late_end(source: SourceFile, mask: ast.expr) -> ast.expr | None:
    """The part of a mask that says where rows end, if that is one position late."""
    parts = list(source.parts(mask))
    for call in (part for part in parts if isinstance(part, ast.Call)):
        # A helper of this file that is given lengths, under a name that says so.
        helper = source.function(call.func)
        if helper is not None and any(map(_is_length, call.args)):
            parts += [part for value in source.returned(helper) for part in source.parts(value)]
    compared = [(part, _excess(source, part)) for part in parts if isinstance(part, ast.Compare)]
    for part, excess in compared:
        if excess == 1:
            return part
    if any(excess is not None for _, excess in compared):
        return None
    for cut in parts:
        is_mask = isinstance(cut, ast.Subscript) and "mask" in last_name(cut.value).lower()
        if is_mask and _columns(cut) == ("", "-1"):
            return cut
    return None


def _excess(source: SourceFile, node: ast.Compare) -> int | None:
    """How many positions too many `positions < lengths` marks; None where that cannot be told."""
    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], ast.Gt | ast.GtE):
        left, right = right, left
    elif not isinstance(node.ops[0], ast.Lt | ast.LtE):
        return None
    match _counted(source, left), _counted(source, right):
        case ("position", first), ("length", length):
            last = length if isinstance(node.ops[0], ast.LtE | ast.GtE) else length - 1
            # Of n tokens the last to be marked is number n - 2.
            return last - first + 2
    return None


def _counted(source: SourceFile, node: ast.expr) -> tuple[str, int] | None:
    """Whether an expression is a position or a row's length, and what is added to it."""
    added = 0
    for _ in range(_DEPTH):
        node = source.values(node)[0]
        if source.is_call(node, "mlx.core.arange"):
            first = constant(node.args[0]) if len(node.args) > 1 else 0
            return ("position", first + added) if isinstance(first, int) else None
        if _is_length(node):
            return "length", added
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


def _is_length(node: ast.expr) -> bool:
    """Whether an expression is called the number of a row's tokens."""
    return _LENGTHS.match(last_name(node).lower()) is not None


#: Tasks in which a token is its own target.
_SAME_TOKEN = re.compile(r"recon|autoenc|mask_token|mlm|diffus|noise|corrupt|denois|vae", re.I)


@rule(
    Severity.ERROR,
    """
import mlx.nn as nn

def loss_fn(model, tokens):
    return nn.losses.cross_entropy(model(tokens), tokens, reduction="mean")
""",
    {"model(tokens), tokens": "model(tokens[:, :-1]), tokens[:, 1:]"},
)
def unshifted_targets(source: SourceFile) -> Hits:
    """Targets that are not shifted by exactly one from the inputs.

    A language model is trained on the next token. Without a shift it learns to repeat the token it
    was just given, which is easy, so that the loss falls fast; with two it learns to skip one.

    Seen in the two sides of a cross-entropy, and in lists of which as many targets are ignored as
    the prompt has tokens, although the answer follows it unshifted.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2:
            continue
        inputs = _start(source, call.args[0], of_logits=True)
        targets = _start(source, call.args[1])
        if inputs is None or targets is None or inputs[0] != targets[0]:
            continue
        shift = targets[1] - inputs[1]
        function = ast.get_source_segment(source.text, source.scope(call)) or source.text
        if shift != 1 and not _SAME_TOKEN.search(function):
            fault = f"the targets begin {shift} tokens after the inputs, not one"
            yield call, f"{fault}: position i is trained on token i{shift:+d}"
    yield from _lists(source)


def _start(
    source: SourceFile, node: ast.expr, *, of_logits: bool = False
) -> tuple[str, int] | None:
    """The array an expression is a part of, and the position along the sequence it begins at; of
    logits, that of the tokens that the model is called with.
    """
    position = 0
    for _ in range(_DEPTH):
        match source.values(node):
            case [ast.Name(id=name)] if not of_logits:
                # A parameter, or what a loop runs through: it is what it is called.
                return name, position
            case [ast.Call(func=ast.Name() | ast.Attribute() as model, args=[node, *_])] if (
                of_logits and "model" in ast.unparse(model).lower()
            ):
                of_logits = False
            case [ast.Call(func=ast.Attribute(attr="astype", value=node))] if of_logits:
                pass
            case [ast.Subscript(slice=ast.Constant(value=0), value=node)] if of_logits:
                # `logits, cache = model(x)`.
                pass
            case [
                ast.Subscript(
                    slice=ast.Tuple(elts=[ast.Slice(), ast.Slice(lower=lower, step=None), *_]),
                    value=node,
                )
            ]:
                # `[:, a:b]` begins a positions later.
                first = 0 if lower is None else constant(lower)
                if not isinstance(first, int) or first < 0:
                    return None
                position += first
            case _:
                return None
    return None


def _lists(source: SourceFile) -> Hits:
    """`inputs = P + A[:-1]` beside `targets = [ignored] * len(P) + A`: one ignored too many."""
    sums = [node for node in source.of(ast.BinOp) if isinstance(node.op, ast.Add)]
    inputs, targets = set[tuple[str, str, ast.AST]](), list[tuple[ast.BinOp, str]]()
    for node in sums:
        match node.left, node.right:
            case prompt, ast.Subscript(value=answer, slice=ast.Slice(lower=None, upper=end)):
                if constant(end) == -1:
                    written = (ast.unparse(prompt), ast.unparse(answer))
                    inputs.add((*written, source.scope(node)))
            case ast.BinOp(
                op=ast.Mult(),
                left=ast.List(),
                right=ast.Call(func=ast.Name(id="len"), args=[prompt]),
            ), _:
                targets.append((node, ast.unparse(prompt)))
    for node, prompt_name in targets:
        if (prompt_name, ast.unparse(node.right), source.scope(node)) in inputs:
            fault = f"as many targets are ignored as {prompt_name} has tokens"
            yield node, f"{fault}, so that each answer token is its own target: ignore one fewer"
