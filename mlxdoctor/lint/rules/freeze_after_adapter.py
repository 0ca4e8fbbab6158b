"""A model that is frozen after its layers were converted.

`freeze()` freezes all parameters, those of the new layers too: nothing is trainable after it.
The other way round, freezing first, the converted layers bring trainable parameters with them.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.conversions import Deed, done_in
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


@rule(
    severity=Severity.ERROR,
    symptom="step-state.nothing-trainable",
    bad=BAD,
    good=GOOD,
    words=("linear_to_lora_layers",),
)
def freeze_after_adapter(source: SourceFile) -> Hits:
    """In one function and its helpers: conversion, then freeze of the same model, and nothing is
    unfrozen, be it a part.
    """
    scopes = dict.fromkeys(source.scope(one) for one in source.calls(".freeze"))
    callers = dict.fromkeys(source.scope(one) for one in source.of(ast.Call)) if scopes else {}
    seen = set[ast.AST]()
    for scope in callers:
        converted = dict[str, ast.Call]()
        frozen = dict[str, ast.Call]()
        for one in done_in(source, scope):
            before = converted.get(one.model)
            if one.deed is Deed.CONVERT:
                converted[one.model] = one.call
                frozen.pop(one.model, None)
            elif before is None or one.call is before or source.excludes(before, one.call):
                continue
            elif one.deed is Deed.FREEZE:
                frozen.setdefault(one.model, one.call)
        for model, call in frozen.items():
            if call not in seen and not any(source.calls(".unfreeze", through=scope)):
                seen.add(call)
                yield call, f"{model} is frozen after its layers were converted: freeze it before"
