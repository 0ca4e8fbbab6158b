"""Layers are converted to LoRA, and the model is not frozen before.

A conversion freezes nothing, not even the weights that the LoRA layers wrap: the whole model is
trained, at a rate that was meant for LoRA, and what is saved as an adapter is not what was learned.
Frozen after the conversion, the new layers are frozen too, and nothing is trainable.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import OPTIMIZERS, SourceFile, last_name

BAD = """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(path, parameters):
    model, tokenizer = load(path)
    linear_to_lora_layers(model, 16, parameters)
    return model, optim.Adam(1e-5)
"""
GOOD = BAD.replace("    linear_to_lora", "    model.freeze()\n    linear_to_lora")
#: Functions that only read a model are called so: `load`, `load_model`, `load_base`.
_LOADER = re.compile(r"load(?:_(?:base|model|tokenizer|pretrained|and|the))*")

_FREEZING = re.compile("freeze|prepare|setup")


@rule(
    Severity.ERROR,
    BAD,
    GOOD,
    symptoms=("step-state.outside-adapter", "step-state.nothing-trainable"),
)
def adapter_without_freeze(source: SourceFile) -> Hits:
    """A model is loaded, converted and trained in a file that freezes nothing; or it is frozen
    after its conversion, and nothing is unfrozen.

    A function of another file whose name speaks of it may freeze the model.
    """
    freezes = list(source.calls(".freeze"))
    may_freeze = any(
        source.function(call.func) is None and _FREEZING.search(last_name(call).lower())
        for call in source.of(ast.Call)
    )
    trains = any(source.calls("mlx.nn.value_and_grad", "mlx_lm.tuner.train", *OPTIMIZERS))
    unfreezes = any(source.calls(".unfreeze"))
    for conversion in source.calls("*.linear_to_lora_layers"):
        if not conversion.args:
            continue
        model = ast.unparse(conversion.args[0])
        if trains and not may_freeze and _is_loaded(source, conversion.args[0]):
            yield (
                conversion,
                f"{model}.freeze() is never called: the whole model is trained, not LoRA alone",
            )
        for freeze in freezes if not unfreezes else ():
            is_same = ast.unparse(freeze) == f"{model}.freeze()"
            same_scope = source.scope(freeze) is source.scope(conversion)
            if is_same and same_scope and source.is_before(conversion, freeze):
                yield freeze, f"{model} is frozen after its layers were converted: freeze it before"


def _is_loaded(source: SourceFile, model: ast.expr) -> bool:
    """Whether the model is read in this file, where nothing is frozen."""
    pairs = [value.value for value in source.values(model) if isinstance(value, ast.Subscript)]
    loaded = [value for pair in pairs for value in source.values(pair)]
    return any(isinstance(call, ast.Call) and _LOADER.fullmatch(last_name(call)) for call in loaded)
