"""A model that is frozen after its layers were converted.

`freeze()` freezes all parameters, those of the new layers too: nothing is trainable after it.
The other way round, freezing first, the converted layers bring trainable parameters with them.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(model, parameters):
    linear_to_lora_layers(model, 16, parameters)
    model.freeze()
"""
GOOD = """
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(model, parameters):
    model.freeze()
    linear_to_lora_layers(model, 16, parameters)
"""


@rule(severity=Severity.ERROR, symptom="step-state.nothing-trainable", bad=BAD, good=GOOD)
def freeze_after_adapter(source: SourceFile) -> Hits:
    """In one function: conversion, then freeze of the same model, and no unfreeze after that."""
    for conversion in source.calls("mlx_lm.tuner.utils.linear_to_lora_layers"):
        if not conversion.args:
            continue
        model = ast.unparse(conversion.args[0])
        scope = source.scope(conversion)
        later = [
            call
            for call in source.calls(".freeze", ".unfreeze", within=scope)
            if call.lineno > conversion.lineno
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value) == model
            and source.scope(call) is scope
        ]
        freezes = [one for one in later if _method(one) == "freeze" and not _is_partial(one)]
        if freezes and not any(_method(one) == "unfreeze" for one in later):
            yield freezes[0], f"{model} is frozen after its layers were converted: freeze it before"


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_partial(call: ast.Call) -> bool:
    """Only some keys, or not what is below."""
    return bool(call.args) or any(one.arg in {"keys", "recurse"} for one in call.keywords)
