"""The weights of an adapter, loaded into a model that has no LoRA layers.

`load_weights` puts tensors where their names say. A model as it was loaded has no `lora_a` and
`lora_b` to put them in: the file is refused, or, with `strict=False`, left out without a word, so
that the base model answers. Make the layers first (`load_adapters(model, path)` does both), or load
with `load(path, adapter_path=...)`.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant, keyword, last_name

BAD = """
import mlx.core as mx
from mlx_lm import load

def load_tuned(path, folder):
    model, tokenizer = load(path)
    weights = mx.load(str(folder / "adapters.safetensors"))
    model.load_weights(list(weights.items()))
    return model, tokenizer
"""
GOOD = """
from mlx_lm import load

def load_tuned(path, folder):
    model, tokenizer = load(path, adapter_path=str(folder))
    return model, tokenizer
"""
#: Parts of names that speak of making layers, or of loading an adapter with them.
_MAKING = re.compile(
    "lora|dora|peft|(?:load|apply|to|add)_adapter|attach|inject|convert|adapter_config|wrap"
)
_ADAPTER_FILE = re.compile(r".*adapter.*\.(?:safetensors|npz)", re.I | re.S)


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-state.claimed-adapter",))
def adapter_without_layers(source: SourceFile) -> Hits:
    """`load_weights` of a file named after an adapter, on a model that the same function loads;
    nothing in the file speaks of LoRA layers.
    """
    loads = [call for call in source.calls(".load_weights") if call.args]
    if not loads or _speaks_of_layers(source):
        return
    for call in loads:
        if _is_of_adapter(source, call.args[0]) and _is_loaded_here(source, call):
            silent = constant(keyword(call, "strict")) is False
            effect = "strict=False leaves them out in silence" if silent else "they are refused"
            yield call, f"the model has no LoRA layers for these weights: {effect}"


def _speaks_of_layers(source: SourceFile) -> bool:
    """Whether a name in the file speaks of LoRA layers, or a call loads an adapter."""
    loads_adapter = any(
        (path := keyword(call, "adapter_path")) is not None
        and not (isinstance(path, ast.Constant) and path.value is None)
        and "load" in last_name(call).lower()
        for call in source.of(ast.Call)
    )
    return loads_adapter or any(_MAKING.search(name.lower()) for name in source.names())


def _is_of_adapter(source: SourceFile, weights: ast.expr) -> bool:
    """Whether what is loaded comes from a path that says adapter."""
    return any(
        isinstance(value := constant(part), str) and _ADAPTER_FILE.fullmatch(value)
        for part in source.parts(weights)
    )


def _is_loaded_here(source: SourceFile, call: ast.Call) -> bool:
    """Whether the model is one that this function has just loaded."""
    model = call.func.value if isinstance(call.func, ast.Attribute) else call
    return isinstance(model, ast.Name) and any(
        isinstance(part, ast.Call) and "load" in ast.unparse(part.func).lower()
        for part in source.parts(model)
    )
