"""Layers are converted to LoRA, and the model is never frozen.

A conversion freezes nothing, not even the weights that the LoRA layers wrap: the whole model is
trained, at a rate that was meant for LoRA, and what is saved as an adapter is not what was learned.
"""

import ast

from mlxdoctor.finding import Severity
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
OPTIMIZERS = tuple(
    f"mlx.optimizers.{name}"
    for name in ("Adam", "AdamW", "SGD", "Adafactor", "Muon", "Lion", "RMSprop", "Adagrad")
)


@rule(severity=Severity.ERROR, symptom="step-state.outside-adapter", bad=BAD, good=GOOD)
def adapter_without_freeze(source: SourceFile) -> Hits:
    """No call of freeze in a file that converts a model it has made, and trains it."""
    if any(source.calls(".freeze")):
        return
    trains = any(source.calls("mlx.nn.value_and_grad", *OPTIMIZERS))
    for conversion in source.calls("mlx_lm.tuner.utils.linear_to_lora_layers"):
        model = conversion.args[0] if conversion.args else None
        if trains and isinstance(model, ast.Name) and _is_made(source, conversion, model.id):
            yield (
                conversion,
                f"{model.id}.freeze() is never called: the whole model is trained, not LoRA alone",
            )


def _is_made(source: SourceFile, node: ast.AST, name: str) -> bool:
    """Whether the name is assigned from a call in the same function, not handed in."""
    return any(
        isinstance(one, ast.Assign)
        and isinstance(one.value, ast.Call)
        and any(
            isinstance(t, ast.Name) and t.id == name for part in one.targets for t in ast.walk(part)
        )
        for one in ast.walk(source.scope(node))
    )
