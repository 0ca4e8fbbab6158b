"""An adapter is claimed, by a flag or by the name of a file, and none is made.

What is trained is decided by the layers and by what is frozen. A flag set in place of a conversion
makes everything after it believe in an adapter that is not there; a model that was never converted
is trained whole, and what is saved under the name of an adapter are its full weights.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import (
    OPTIMIZERS,
    Function,
    SourceFile,
    constant,
    is_model,
    last_name,
)

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
_CLAIMS = re.compile(
    r"_*+(?:(?:has|is|with)_\w*(?:adapter|lora)s?(?:_layers)?"
    r"|\w*(?:adapter|lora)s?_(?:added|attached|applied|loaded))"
)
#: Names of what may make an adapter, or train a part of the model.
_MAKING = re.compile(
    r"(?!save).*(?:adapter|lora|dora|peft|convert|attach|inject|freeze|update_modules|apply|wrap"
    r"|prepare|set_?up|build|create)"
)
_SAVING = ("mlx.core.save_safetensors", "mlx.core.savez", ".save_weights")


@rule(
    Severity.ERROR,
    BAD,
    GOOD,
    symptoms=("step-state.claimed-adapter", "step-state.everything-trainable"),
)
def adapter_flag(source: SourceFile) -> Hits:
    """A flag is set where nothing is called that could have made an adapter; or a model of mlx-lm
    is loaded, trained, and saved as `adapter...`, in a file that names nothing that attaches one.
    """
    for node in source.of(ast.Assign):
        for target in node.targets if constant(node.value) is True else ():
            if (
                isinstance(target, ast.Attribute)
                and _CLAIMS.fullmatch(target.attr.lower())
                and is_model(target.value)
                and isinstance(source.scope(node), Function)
                and not _may_have_adapter(source, target)
            ):
                yield node, f"{target.attr} is set, but nothing in this function makes an adapter"
    loads = list(source.calls("mlx_lm.load"))
    trains = any(source.calls("mlx.nn.value_and_grad")) and any(source.calls(*OPTIMIZERS))
    if not loads or not trains or any(call.keywords or len(call.args) > 1 for call in loads):
        return
    for save in source.calls(*_SAVING):
        if save.args and "adapter" in str(constant(save.args[0])).lower():
            if not any(_MAKING.match(name.lower()) for name in source.names()):
                yield save, "no layer was converted to LoRA: this file holds the full weights"
            return


def _may_have_adapter(source: SourceFile, flag: ast.Attribute) -> bool:
    """Whether the model comes out of a call, or a function of another file that is called where the
    flag is set or asked for may make its adapter.
    """
    if any(isinstance(value, ast.Call | ast.Subscript) for value in source.values(flag.value)):
        return True
    scopes = {source.scope(node) for node in source.of(ast.Attribute) if node.attr == flag.attr}
    return any(
        source.function(call.func) is None
        and (
            _MAKING.match(last_name(call).lower())
            or any("adapter" in (given.arg or "") for given in call.keywords)
        )
        for scope in scopes
        if isinstance(scope, Function)
        for part in source.reached(scope)
        for call in source.of(ast.Call, within=part)
    )
