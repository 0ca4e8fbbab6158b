"""An adapter is saved, and no layer was ever converted to one.

Without a conversion there are no LoRA layers: the whole model is trained, and what is saved under
the name of an adapter are its full weights, which nothing loads as an adapter.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.rules.adapter_without_freeze import OPTIMIZERS

BAD = """
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm import load

def main(loss_fn, batches):
    model, tokenizer = load("base")
    optimizer = optim.AdamW(learning_rate=1e-5)
    step = nn.value_and_grad(model, loss_fn)
    for x, y in batches:
        loss, grads = step(model, x, y)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
    weights = dict(tree_flatten(model.trainable_parameters()))
    mx.save_safetensors("adapters.safetensors", weights)
"""
GOOD = BAD.replace(
    """    optimizer = optim""",
    """    model.freeze()
    linear_to_lora_layers(model, 16, {"rank": 8, "scale": 20.0, "dropout": 0.0})
    optimizer = optim""",
).replace(
    """from mlx_lm import load
""",
    """from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers
""",
)
#: Parts of names that speak of attaching, loading or making an adapter, or of a part unfrozen.
ATTACHING = (
    "lora", "dora", "adapter", "peft", "convert", "attach", "inject", "freeze", "wrap", "apply",
    "prepare", "setup", "set_up", "build", "create", "update_modules",
)  # fmt: skip
SAVING = ("mlx.core.save_safetensors", "mlx.core.savez", ".save_weights")


@rule(
    severity=Severity.ERROR,
    symptom="step-state.everything-trainable",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad", "adapter", "mlx_lm"),
)
def adapter_never_made(source: SourceFile) -> Hits:
    """A model of mlx-lm is loaded, trained, and saved as `adapter…`; nothing attaches one.

    A file that names LoRA, calls anything that may convert the model, or loads one with its
    adapter, is left alone.
    """
    loads = list(source.calls("mlx_lm.load", "mlx_lm.utils.load"))
    trains = any(source.calls("mlx.nn.value_and_grad")) and any(source.calls(*OPTIMIZERS))
    if not loads or not trains or any(one.keywords or len(one.args) > 1 for one in loads):
        return
    saves = [
        one
        for one in source.calls(*SAVING)
        if one.args
        and isinstance(one.args[0], ast.Constant)
        and "adapter" in str(one.args[0].value).lower()
    ]
    if saves and not any(_attaches(node, saves) for node in source.nodes):
        yield saves[0], "no layer was converted to LoRA: this file holds the model's full weights"


def _attaches(node: ast.AST, saves: list[ast.Call]) -> bool:
    """Whether a node is a name that speaks of making an adapter."""
    said = ""
    if isinstance(node, ast.Call) and node not in saves:
        said = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        said = node.func.id if isinstance(node.func, ast.Name) else said
    elif isinstance(node, ast.alias | ast.FunctionDef | ast.ClassDef):
        said = node.name
    said = said.lower()
    return any(word in said for word in ATTACHING) and not said.startswith("save")
