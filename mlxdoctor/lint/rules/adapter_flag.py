"""A flag that says there is an adapter, in a function that makes none.

What is trained is decided by the layers and by what is frozen. A flag set in place of a
conversion makes everything after it believe in an adapter that is not there.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def add_adapter(model, config):
    model._has_adapter = True
    return model
"""
GOOD = """
from mlx_lm.tuner.utils import linear_to_lora_layers

def add_adapter(model, config):
    model.freeze()
    linear_to_lora_layers(model, config.num_layers, config.lora_parameters)
    model._has_adapter = True
    return model
"""
WORDS = ("adapter", "lora")


@rule(severity=Severity.ERROR, symptom="step-state.claimed-adapter", bad=BAD, good=GOOD)
def adapter_flag(source: SourceFile) -> Hits:
    """An attribute named after an adapter is set to True where nothing is called that could be one.

    A call of anything whose name speaks of converting, loading or attaching may be it.
    """
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or constant(node.value) is not True:
            continue
        flags = [
            target.attr
            for target in node.targets
            if isinstance(target, ast.Attribute)
            and any(word in target.attr.lower() for word in WORDS)
            and target.attr.lower()
            .lstrip("_")
            .startswith(("has_", "is_", "with_", "lora_", "adap"))
        ]
        scope = source.scope(node)
        if flags and not isinstance(scope, ast.Module) and not _converts(source, scope):
            yield node, f"{flags[0]} is set, but nothing in this function makes an adapter"


def _converts(source: SourceFile, scope: ast.AST) -> bool:
    words = (*WORDS, "convert", "attach", "inject", "load", "update_modules", "apply", "wrap")
    return any(
        any(word in _called(source, node).lower() for word in words)
        for node in ast.walk(scope)
        if isinstance(node, ast.Call)
    )


def _called(source: SourceFile, call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        # Logging that an adapter was added adds none.
        return call.func.attr
    return source.name_of(call.func)
