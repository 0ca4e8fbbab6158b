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
#: The conversion that mlx-lm offers, or a copy of it.
_CONVERTER = "*.linear_to_lora_layers"
#: Functions that only read a model are called so: `load`, `load_model`, `load_base`.
_LOADER = re.compile(r"load(?:_(?:base|model|tokenizer|pretrained|and|the))*")


@rule(
    Severity.ERROR,
    BAD,
    GOOD,
    symptoms=("step-state.outside-adapter", "step-state.nothing-trainable"),
)
def adapter_without_freeze(source: SourceFile) -> Hits:
    """A model is loaded, converted and trained in a file that freezes nothing; or it is frozen
    after its conversion, and nothing is unfrozen.

    A model that is handed to a function of another file may be frozen there.
    """
    trains = any(source.calls("mlx.nn.value_and_grad", "mlx_lm.tuner.train", *OPTIMIZERS))
    freezes = list(source.calls(".freeze"))
    for conversion in source.calls(_CONVERTER):
        if not conversion.args:
            continue
        model, scope = ast.unparse(conversion.args[0]), source.scope(conversion)
        if trains and not freezes and _is_loaded(source, conversion.args[0]):
            if not source.is_handed_on(model, scope, _CONVERTER):
                yield (
                    conversion,
                    f"{model}.freeze() is never called: the whole model is trained, not LoRA alone",
                )
        elif freezes and not any(source.calls(".unfreeze")):
            for freeze in freezes:
                same = ast.unparse(freeze.func) == f"{model}.freeze" and not freeze.args
                if same and source.scope(freeze) is scope and source.is_before(conversion, freeze):
                    yield (
                        freeze,
                        f"{model} is frozen after its layers were converted: freeze it before",
                    )


def _is_loaded(source: SourceFile, model: ast.expr) -> bool:
    """Whether the model is read in this file, where nothing is frozen."""
    pairs = [value.value for value in source.values(model) if isinstance(value, ast.Subscript)]
    loaded = [value for pair in pairs for value in source.values(pair)]
    return any(isinstance(call, ast.Call) and _LOADER.fullmatch(last_name(call)) for call in loaded)
