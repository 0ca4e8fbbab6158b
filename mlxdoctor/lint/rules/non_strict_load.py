"""Weights loaded with `strict=False`.

Names that fit nothing are left out without a word: an adapter for another model, or one whose names
have a prefix too many, loads "successfully" and does nothing.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

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
_TRAINED = ("adapter", "lora", "dora", "resume", "checkpoint", "ckpt", "finetun", "fine_tun")
#: What is called as if it looked at names; and what holds what such a look gave.
_LOOKS = re.compile(
    r"require|check(?!point)|validate|verif|compar|compat|match|fits|missing|unexpected|differ|assert"
)
_FOUND = re.compile(r"missing|unexpected|mismatch|unmatched|unknown_(?:keys|names)")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("load_weights", "False"))
def non_strict_load(source: SourceFile) -> Hits:
    """An adapter or a checkpoint, `strict` as a literal, and no look at the names before.

    What was taken out of a model fits it when it is put back.
    """
    for call in source.calls(".load_weights"):
        value = keyword(call, "strict")
        positional = call.args[1] if len(call.args) > 1 else None
        if constant(value if value is not None else positional) is not False or not call.args:
            continue
        scope = source.scope(call)
        if (
            _is_trained(source, call, scope)
            and not _is_of_a_model(source, call.args[0])
            and not _looks_at_names(source, call, scope)
        ):
            yield call, "names that fit nothing are skipped in silence: compare them first"


def _is_trained(source: SourceFile, call: ast.Call, scope: ast.AST) -> bool:
    """Whether the function, what is loaded, or where that comes from speaks of an adapter."""
    words = [getattr(scope, "name", ""), *map(ast.unparse, _origins(source, call.args[0]))]
    return any(one in word.lower() for word in words for one in _TRAINED)


def _origins(source: SourceFile, node: ast.expr, steps: int = 3) -> list[ast.expr]:
    """An expression, and what the names in it were given."""
    found = [node]
    if steps:
        for name in source.of(ast.Name, ast.Attribute, within=node):
            for value in source.values(name):
                if value is not name:
                    found += _origins(source, value, steps - 1)
    return found


def _is_of_a_model(source: SourceFile, node: ast.expr) -> bool:
    """Whether the weights were a model's parameters before."""
    asked = (".parameters", ".trainable_parameters")
    return any(
        any(source.calls(*asked, within=one)) or source.is_call(one, *asked)
        for one in _origins(source, node)
    )


def _looks_at_names(source: SourceFile, load: ast.Call, scope: ast.AST) -> bool:
    """Whether the function compares names before, or calls what looks as if it did."""
    before = source.found.number[load]
    origins = _origins(source, load.args[0])
    loaded = {name.id for one in origins for name in source.of(ast.Name, within=one)} - {
        "str",
        "list",
    }
    stored = (one.id for one in source.of(ast.Name, within=scope) if isinstance(one.ctx, ast.Store))
    if any(_FOUND.search(one.lower()) for one in stored):
        return True
    for call in source.of(ast.Call, within=scope):
        said = ast.unparse(call.func).rpartition(".")[2].lower()
        if call is not load and _LOOKS.search(said) and _speaks_of(source, call, loaded):
            return True
    for one in source.of(ast.Compare, ast.BinOp, within=scope):
        if source.found.number[one] > before:
            break
        if isinstance(one, ast.BinOp):
            # Sets of names: `set(weights) - set(model)`, `a ^ b`.
            if isinstance(one.op, ast.Sub | ast.BitXor | ast.BitAnd) and _is_set(source, one.left):
                return True
        elif "keys" in ast.unparse(one) or (
            isinstance(one.ops[0], ast.NotIn) and _speaks_of(source, _around(source, one), loaded)
        ):
            return True
    return False


def _around(source: SourceFile, node: ast.AST) -> ast.AST:
    """What a comparison runs through: the loop or comprehension that it is in, or itself."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, Function | ast.ClassDef):
        if isinstance(at, ast.For):
            return at.iter
        if isinstance(at, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return at.generators[0].iter
        at = source.parents.get(at)
    return node


def _speaks_of(source: SourceFile, node: ast.AST, names: set[str]) -> bool:
    return any(one.id in names for one in source.of(ast.Name, within=node))


def _is_set(source: SourceFile, node: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Set | ast.SetComp) or source.is_call(one, "set", "frozenset", ".keys")
        for one in source.values(node)
    )
