"""Targets that are not shifted by exactly one from the inputs.

A language model is trained on the next token. Without a shift it learns to repeat the token it was
just given, which is easy, so that the loss falls fast; with two it learns to skip one.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import returned
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def loss_fn(model, tokens):
    return nn.losses.cross_entropy(model(tokens), tokens, reduction="mean")
"""
GOOD = """
import mlx.nn as nn

def loss_fn(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")
"""


#: Tasks in which a token is its own target.
_SAME_TOKEN = re.compile(r"recon|autoenc|mask_token|mlm|diffus|noise|corrupt|denois|vae", re.I)


@rule(
    severity=Severity.ERROR,
    symptom="step-alignment.identity",
    bad=BAD,
    good=GOOD,
    words=("cross_entropy|* len(", "cross_entropy|[:-1]"),
)
def unshifted_targets(source: SourceFile) -> Hits:
    """Two cases: a cross-entropy whose two sides begin at the same or two tokens apart in the
    same array; and lists in which as many targets are ignored as the prompt has tokens, although
    the answer follows it unshifted.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2:
            continue
        given, wanted = _of_logits(source, call.args[0]), _start(source, call.args[1])
        if given is None or wanted is None or given[0] != wanted[0]:
            continue
        shift = wanted[1] - given[1]
        if shift != 1 and not _SAME_TOKEN.search(_text(source, source.scope(call))):
            yield (
                call,
                f"the targets begin {shift} tokens after the inputs, not one: position i is "
                f"trained on token i{shift:+d}",
            )
    yield from _lists(source)


def _text(source: SourceFile, scope: ast.AST) -> str:
    """A function's source, as far as it has lines of its own."""
    first, last = getattr(scope, "lineno", 1), getattr(scope, "end_lineno", len(source.lines))
    return "\n".join(source.lines[first - 1 : last])


def _start(source: SourceFile, node: ast.expr) -> tuple[str, int] | None:
    """The array an expression is a part of, and the position along the sequence it begins at."""
    values = source.values(node)
    if len(values) != 1:
        return None
    node = values[0]
    if isinstance(node, ast.Name):
        # A parameter, or what a loop runs through: it is what it is called.
        return node.id, 0
    if isinstance(node, ast.Subscript):
        held, first = _start(source, node.value), _first(node.slice)
        return None if held is None or first is None else (held[0], held[1] + first)
    return None


def _of_logits(source: SourceFile, node: ast.expr) -> tuple[str, int] | None:
    """The same for logits: those of the tokens that the model is called with."""
    values = source.values(node)
    if len(values) != 1:
        return None
    node = values[0]
    if isinstance(node, ast.Call) and node.args and _is_model(node.func):
        return _start(source, node.args[0])
    if isinstance(node, ast.Call) and (handed := _handed_to_model(source, node)) is not None:
        return _start(source, handed)
    if source.is_call(node, ".astype") and isinstance(node.func, ast.Attribute):
        return _of_logits(source, node.func.value)
    if isinstance(node, ast.Subscript):
        if constant(node.slice) == 0:
            # `logits, cache = model(x)`.
            return _of_logits(source, node.value)
        held, first = _of_logits(source, node.value), _first(node.slice)
        return None if held is None or first is None else (held[0], held[1] + first)
    return None


def _handed_to_model(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """The argument that a function of this file calls the model with, as it is, for its result."""
    function = source.function_named(call.func)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    names = [one.arg for one in function.args.args if one.arg != "self"]
    places = set[int | None]()
    for value in returned(source, function):
        first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
        made = source.values(first)[0]
        of_model = isinstance(made, ast.Call) and made.args and _is_model(made.func)
        given = made.args[0] if isinstance(made, ast.Call) and of_model else None
        is_own = isinstance(given, ast.Name) and source.values(given) == [given]
        places.add(
            names.index(given.id)
            if is_own and isinstance(given, ast.Name) and given.id in names
            else None
        )
    place = places.pop() if len(places) == 1 else None
    return call.args[place] if place is not None and place < len(call.args) else None


def _is_model(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and "model" in ast.unparse(node).lower()


def _first(node: ast.expr) -> int | None:
    """Where `[:, a:b]` begins along the second axis; None where that cannot be told."""
    if not isinstance(node, ast.Tuple) or len(node.elts) < 2:
        return None
    rows, part = node.elts[:2]
    if not isinstance(rows, ast.Slice) or not isinstance(part, ast.Slice):
        return None
    first = 0 if part.lower is None else constant(part.lower)
    return first if isinstance(first, int) and first >= 0 and part.step is None else None


def _lists(source: SourceFile) -> Hits:
    """`inputs = P + A[:-1]` beside `targets = [ignored] * len(P) + A`: one ignored too many."""
    sums = [one for one in source.of(ast.BinOp) if isinstance(one.op, ast.Add)]
    joined = {
        (ast.unparse(node.left), ast.unparse(node.right.value), source.scope(node))
        for node in sums
        if isinstance(node.right, ast.Subscript) and _drops_last(node.right.slice)
    }
    for node in sums if joined else ():
        prompt = _repeated(node.left)
        if prompt is None:
            continue
        if (prompt, ast.unparse(node.right), source.scope(node)) in joined:
            yield (
                node,
                f"as many targets are ignored as {prompt} has tokens, so that each answer token is "
                f"its own target: ignore one fewer",
            )


def _drops_last(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is None and constant(node.upper) == -1


def _repeated(node: ast.expr) -> str | None:
    """P of `[x] * len(P)`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    length = node.right
    if isinstance(node.left, ast.List) and isinstance(length, ast.Call) and len(length.args) == 1:
        named = isinstance(length.func, ast.Name) and length.func.id == "len"
        return ast.unparse(length.args[0]) if named else None
    return None
