"""Targets that are not shifted by exactly one from the inputs.

A language model is trained on the next token. Without a shift it learns to repeat the token it was
just given, which is easy, so that the loss falls fast; with two it learns to skip one.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant

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
_DEPTH = 8


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-alignment.identity",))
def unshifted_targets(source: SourceFile) -> Hits:
    """Two cases: a cross-entropy whose two sides begin at the same or two tokens apart in the
    same array; and lists in which as many targets are ignored as the prompt has tokens, although
    the answer follows it unshifted.
    """
    for call in source.calls("mlx.nn.losses.cross_entropy"):
        if len(call.args) < 2:
            continue
        inputs, targets = _start_of_logits(source, call.args[0]), _start(source, call.args[1])
        if inputs is None or targets is None or inputs[0] != targets[0]:
            continue
        shift = targets[1] - inputs[1]
        function = ast.get_source_segment(source.text, source.scope(call)) or source.text
        if shift != 1 and not _SAME_TOKEN.search(function):
            yield (
                call,
                f"the targets begin {shift} tokens after the inputs, not one: position i is "
                f"trained on token i{shift:+d}",
            )
    yield from _lists(source)


def _start(source: SourceFile, node: ast.expr, depth: int = _DEPTH) -> tuple[str, int] | None:
    """The array an expression is a part of, and the position along the sequence it begins at."""
    match source.values(node) if depth else []:
        case [ast.Name(id=name)]:
            # A parameter, or what a loop runs through: it is what it is called.
            return name, 0
        case [ast.Subscript() as part]:
            return _moved(_start(source, part.value, depth - 1), part)
    return None


def _start_of_logits(
    source: SourceFile, node: ast.expr, depth: int = _DEPTH
) -> tuple[str, int] | None:
    """The same for logits: those of the tokens that the model is called with."""
    match source.values(node) if depth else []:
        case [ast.Call(args=[tokens, *_]) as call] if _is_model(call.func):
            return _start(source, tokens)
        case [ast.Call(func=ast.Attribute(attr="astype", value=held))]:
            return _start_of_logits(source, held, depth - 1)
        case [ast.Subscript(slice=ast.Constant(value=0), value=pair)]:
            # `logits, cache = model(x)`.
            return _start_of_logits(source, pair, depth - 1)
        case [ast.Subscript() as part]:
            return _moved(_start_of_logits(source, part.value, depth - 1), part)
    return None


def _moved(start: tuple[str, int] | None, part: ast.Subscript) -> tuple[str, int] | None:
    """Where `[:, a:b]` of what begins somewhere begins along the second axis."""
    match part.slice:
        case ast.Tuple(elts=[ast.Slice(), ast.Slice(lower=lower, step=None), *_]):
            first = 0 if lower is None else constant(lower)
            if start is not None and isinstance(first, int) and first >= 0:
                return start[0], start[1] + first
    return None


def _is_model(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and "model" in ast.unparse(node).lower()


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
            yield (
                node,
                f"as many targets are ignored as {prompt_name} has tokens, so that each answer "
                "token is its own target: ignore one fewer",
            )
