"""A flag that says there is an adapter, in a function that makes none.

What is trained is decided by the layers and by what is frozen. A flag set in place of a
conversion makes everything after it believe in an adapter that is not there.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.conversions import is_handed_on
from mlxdoctor.lint.python_file import Function, SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

def add_adapter(model, config):
    model._has_adapter = True
    return model
"""
GOOD = """
import mlx.nn as nn
from mlx_lm.tuner.utils import linear_to_lora_layers

def add_adapter(model, config):
    model.freeze()
    linear_to_lora_layers(model, config.num_layers, config.lora_parameters)
    model._has_adapter = True
    return model
"""
#: What a flag that claims an adapter speaks of, and how it claims it.
WORDS = ("adapter", "lora")
_CLAIMS = re.compile(
    r"_*+(?:(?:has|is|with)_\w*(?:adapter|lora)s?(?:_layers)?"
    r"|\w*(?:adapter|lora)s?_(?:added|attached|applied|loaded))"
)
#: Parts of names of what may make an adapter.
_MAKING = (*WORDS, "convert", "attach", "inject", "load", "update_modules", "apply", "wrap", "peft")
#: How names end that claim one.
_SET = "|".join(
    f"{one} = True"
    for one in (
        "adapter",
        "adapters",
        "lora",
        "loras",
        "layers",
        "added",
        "attached",
        "applied",
        "loaded",
    )
)


@rule(
    severity=Severity.ERROR,
    symptom="step-state.claimed-adapter",
    bad=BAD,
    good=GOOD,
    words=("adapter|lora|Adapter|Lora|LoRA", _SET),
)
def adapter_flag(source: SourceFile) -> Hits:
    """A model is said to have an adapter where nothing is called that could have made it.

    A call of anything whose name speaks of converting, loading or attaching may be it, in the
    function or in one that asks for the flag; so may any that is handed the model.
    """
    for node in source.of(ast.Assign):
        if constant(node.value) is not True:
            continue
        scope = source.scope(node)
        for target in node.targets:
            if (
                isinstance(target, ast.Attribute)
                and _CLAIMS.fullmatch(target.attr.lower())
                and _is_model(target.value)
                and isinstance(scope, Function)
                and not _is_made(source, target.value)
                and not _may_make(source, scope, ast.unparse(target.value))
                and not _is_made_elsewhere(source, target.attr)
            ):
                yield node, f"{target.attr} is set, but nothing in this function makes an adapter"


def _is_model(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last == "model" or last.endswith("_model")


def _is_made(source: SourceFile, node: ast.expr) -> bool:
    """Whether the model comes out of a call, which may have made the adapter."""
    return any(isinstance(one, ast.Call | ast.Subscript) for one in source.values(node))


def _may_make(source: SourceFile, scope: ast.AST, model: str) -> bool:
    return is_handed_on(source, scope, model) or any(
        _makes(source, call)
        for one in source.reached(scope)
        for call in source.of(ast.Call, within=one)
    )


def _makes(source: SourceFile, call: ast.Call) -> bool:
    if source.function_named(call.func) is not None:
        # It is looked into.
        return False
    full = source.name_of(call.func)
    # Logging that an adapter was added adds none: of a method its own name counts.
    said = call.func.attr if isinstance(call.func, ast.Attribute) else full
    named = (one.arg or "" for one in call.keywords)
    return any(word in said.lower() for word in _MAKING) or any("adapter" in one for one in named)


def _is_made_elsewhere(source: SourceFile, flag: str) -> bool:
    """Whether a function that asks for the flag makes the adapter: it only says what to do."""
    asking = {
        source.scope(one)
        for one in source.of(ast.Attribute)
        if one.attr == flag and isinstance(one.ctx, ast.Load)
    }
    return any(
        _makes(source, call)
        for scope in asking
        if isinstance(scope, Function)
        for call in source.of(ast.Call, within=scope)
    )
