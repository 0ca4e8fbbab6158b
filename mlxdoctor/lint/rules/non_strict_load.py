"""Weights loaded with `strict=False`.

Names that fit nothing are left out without a word: an adapter for another model, or one whose names
have a prefix too many, loads "successfully" and does nothing.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, keyword, last_name

BAD = """
import mlx.core as mx

def resume(model, path):
    model.load_weights(path, strict=False)
"""
GOOD = """
import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

def resume(model, path):
    weights = mx.load(path)
    wanted = dict(tree_flatten(model.trainable_parameters()))
    if weights.keys() != wanted.keys():
        raise ValueError(f"{path} does not fit: {sorted(weights.keys() ^ wanted.keys())[:5]}")
    model.update(tree_unflatten(list(weights.items())))
"""
#: What is loaded for training to go on, or for what was trained to be used.
_TRAINED = re.compile(r"adapter|lora|dora|resume|checkpoint|ckpt|fine_?tun")
#: What is called as if it looked at names; and what holds what such a look gave.
_LOOKS = re.compile(
    r"require|check(?!point)|validate|verif|compar|compat|match|fits|missing|unexpected|differ|assert"
)
_FOUND = re.compile(r"missing|unexpected|mismatch|unmatched|unknown_(?:keys|names)")
#: Names are followed through this many others.
_STEPS = 3


@rule(Severity.WARNING, BAD, GOOD)
def non_strict_load(source: SourceFile) -> Hits:
    """An adapter or a checkpoint, `strict` as a literal, and no look at the names before.

    What was taken out of a model fits it when it is put back.
    """
    for call in source.calls(".load_weights"):
        strict = keyword(call, "strict") or (call.args[1] if len(call.args) > 1 else None)
        if constant(strict) is not False or not call.args:
            continue
        scope, origins = source.scope(call), _origins(source, call.args[0])
        said = " ".join([getattr(scope, "name", ""), *map(ast.unparse, origins)])
        from_model = any(
            any(source.calls(".parameters", ".trainable_parameters", within=origin))
            for origin in origins
        )
        if _TRAINED.search(said.lower()) and not from_model:
            names = {name for origin in origins for name in source.names_in(origin)}
            if not _looks_at_names(source, call, names - {"str", "list"}):
                yield call, "names that fit nothing are skipped in silence: compare them first"


def _origins(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """An expression, and what the names in it were given."""
    origins, newest = [node], [node]
    for _ in range(_STEPS):
        given = [
            value
            for origin in newest
            for name in source.of(ast.Name, ast.Attribute, within=origin)
            for value in source.values(name)
        ]
        newest = [value for value in dict.fromkeys(given) if value not in origins]
        origins += newest
    return origins


def _looks_at_names(source: SourceFile, load: ast.Call, loaded: set[str]) -> bool:
    """Whether the function compares names before, or calls what looks as if it did."""
    scope, numbers = source.scope(load), source.index.number
    for name in source.of(ast.Name, within=scope):
        if isinstance(name.ctx, ast.Store) and _FOUND.search(name.id.lower()):
            return True
    for call in source.of(ast.Call, within=scope):
        looks = call is not load and _LOOKS.search(last_name(call).lower())
        if looks and loaded & source.names_in(call):
            return True
    for node in source.of(ast.Compare, ast.BinOp, within=scope):
        if numbers[node] > numbers[load]:
            break
        if isinstance(node, ast.BinOp):
            # Sets of names: `set(weights) - set(model)`, `a ^ b`.
            of_sets = isinstance(node.op, ast.Sub | ast.BitXor | ast.BitAnd)
            if of_sets and _is_set(source, node.left):
                return True
        elif "keys" in ast.unparse(node) or (
            isinstance(node.ops[0], ast.NotIn)
            and loaded & source.names_in(_run_through(source, node))
        ):
            return True
    return False


def _run_through(source: SourceFile, node: ast.AST) -> ast.AST:
    """What the loop or comprehension that a comparison is in runs through; or itself."""
    loop = source.enclosing(
        node, ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
    )
    match loop:
        case ast.For():
            return loop.iter
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return loop.generators[0].iter
    return node


def _is_set(source: SourceFile, node: ast.expr) -> bool:
    return any(
        isinstance(value, ast.Set | ast.SetComp)
        or source.is_call(value, "set", "frozenset", ".keys")
        for value in source.values(node)
    )
