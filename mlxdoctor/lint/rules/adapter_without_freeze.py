"""Layers are converted to LoRA, and the model is never frozen.

A conversion freezes nothing, not even the weights that the LoRA layers wrap: the whole model is
trained, at a rate that was meant for LoRA, and what is saved as an adapter is not what was learned.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.conversions import CONVERTERS, Deed, Done, done_in, is_handed_on
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(path, parameters):
    model, tokenizer = load(path)
    linear_to_lora_layers(model, 16, parameters)
    return model, optim.Adam(1e-5)
"""
GOOD = """
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(path, parameters):
    model, tokenizer = load(path)
    model.freeze()
    linear_to_lora_layers(model, 16, parameters)
    return model, optim.Adam(1e-5)
"""
#: Functions that only read a model are called so: `load`, `load_model`, `load_base`.
_LOADER = re.compile(r"load(?:_(?:base|model|tokenizer|pretrained|and|the))*")
OPTIMIZERS = tuple(
    f"mlx.optimizers.{name}"
    for name in ("Adam", "AdamW", "SGD", "Adafactor", "Muon", "Lion", "RMSprop", "Adagrad")
)


@rule(
    severity=Severity.ERROR,
    symptom="step-state.outside-adapter",
    bad=BAD,
    good=GOOD,
    words=("linear_to_lora_layers",),
)
def adapter_without_freeze(source: SourceFile) -> Hits:
    """A model is loaded, converted and trained in a file that freezes nothing.

    A model that was handed to a function of another file may have been frozen there.
    """
    conversions = list(source.calls(*CONVERTERS))
    if not conversions or any(source.calls(".freeze")):
        return
    if not any(source.calls("mlx.nn.value_and_grad", "mlx_lm.tuner.train", *OPTIMIZERS)):
        return
    for scope in dict.fromkeys(source.scope(one) for one in source.of(ast.Call)):
        for done in done_in(source, scope):
            if done.deed is not Deed.CONVERT or not _is_loaded(source, done):
                continue
            if not is_handed_on(source, scope, done.model):
                yield (
                    done.call,
                    f"{done.model}.freeze() is never called: the whole model is trained, not LoRA "
                    "alone",
                )


def _is_loaded(source: SourceFile, done: Done) -> bool:
    """Whether the model is read in this file, where nothing is frozen."""
    handed = [one for one in done.call.args if ast.unparse(one) == done.model]
    return any(
        _loads(source, held)
        for one in handed
        for value in source.values(one)
        if isinstance(value, ast.Subscript)
        for held in source.values(value.value)
    )


def _loads(source: SourceFile, node: ast.expr) -> bool:
    called = source.name_of(node.func) if isinstance(node, ast.Call) else ""
    return _LOADER.fullmatch(called.rpartition(".")[2]) is not None
