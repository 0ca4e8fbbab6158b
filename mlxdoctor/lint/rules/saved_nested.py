"""Nested parameters given to a file format that is flat.

`parameters()` and `trainable_parameters()` return dicts of dicts and lists. `mx.save_safetensors`
takes one dict of arrays by name, `mx.savez` arrays by keyword: both end with an error (`bad_cast`),
after the training is done. `dict(tree_flatten(model.trainable_parameters()))` is flat.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.core as mx

def save(model, path):
    mx.save_safetensors(path, dict(model.trainable_parameters()))
"""
GOOD = """
import mlx.core as mx
from mlx.utils import tree_flatten

def save(model, path):
    mx.save_safetensors(path, dict(tree_flatten(model.trainable_parameters())))
"""


@rule(Severity.ERROR, BAD, GOOD)
def saved_nested(source: SourceFile) -> Hits:
    """What `parameters()` returned, as it is or in `dict(...)`, where arrays are written."""
    for call in source.calls("mlx.core.save_safetensors", "mlx.core.save_gguf"):
        if len(call.args) > 1 and _is_nested(source, call.args[1]):
            yield call, "these parameters are nested: dict(tree_flatten(...)) makes them flat"
    for call in source.calls("mlx.core.savez", "mlx.core.savez_compressed"):
        if any(given.arg is None and _is_nested(source, given.value) for given in call.keywords):
            yield call, "these parameters are nested: dict(tree_flatten(...)) makes them flat"


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    match source.values(node):
        case [ast.Call(func=ast.Name(id="dict"), args=[inner], keywords=[])]:
            return source.are_parameters(inner)
    return source.are_parameters(node)
