"""Nested parameters given to a file format that is flat.

`parameters()` and `trainable_parameters()` return dicts of dicts and lists. `mx.save_safetensors`
takes one dict of arrays by name, `mx.savez` arrays by keyword: both end with an error (`bad_cast`),
after the training is done. `dict(tree_flatten(model.trainable_parameters()))` is flat.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

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
FILES = ("mlx.core.save_safetensors", "mlx.core.save_gguf")
NUMPY = ("mlx.core.savez", "mlx.core.savez_compressed")


@rule(
    severity=Severity.ERROR,
    bad=BAD,
    good=GOOD,
    words=("save_safetensors|save_gguf|savez", "parameters()"),
)
def saved_nested(source: SourceFile) -> Hits:
    """What `parameters()` returned, as it is or in `dict(...)`, where arrays are written."""
    for call in source.calls(*FILES, *NUMPY):
        if source.is_call(call, *NUMPY):
            given = [one.value for one in call.keywords if one.arg is None]
        else:
            given = call.args[1:2]
        if given and _is_nested(source, given[0]):
            yield call, "these parameters are nested: dict(tree_flatten(...)) makes them flat"


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    values = source.values(node)
    if len(values) == 1 and isinstance(values[0], ast.Call):
        call = values[0]
        if isinstance(call.func, ast.Name) and call.func.id == "dict" and len(call.args) == 1:
            return not call.keywords and _is_nested(source, call.args[0])
    return source.are_parameters(node)
