"""The weights of an adapter, loaded into a model that has no LoRA layers.

`load_weights` puts tensors where their names say. A model as it was loaded has no `lora_a` and
`lora_b` to put them in: the file is refused, or, with `strict=False`, left out without a word, so
that the base model answers. Make the layers first (`load_adapters(model, path)` does both), or load
with `load(path, adapter_path=...)`.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import parts
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

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
MAKING = ("lora", "dora", "peft", "load_adapter", "apply_adapter", "attach", "inject", "convert",
          "adapter_config", "to_adapter", "add_adapter", "wrap")  # fmt: skip


@rule(
    severity=Severity.ERROR,
    symptom="step-state.claimed-adapter",
    bad=BAD,
    good=GOOD,
    words=("load_weights", "adapter"),
)
def adapter_without_layers(source: SourceFile) -> Hits:
    """`load_weights` of a file named after an adapter, on a model that the same function loads;
    nothing in the file speaks of LoRA layers.
    """
    loads = [call for call in source.calls(".load_weights") if call.args]
    if not loads or any(_makes(node) for node in _named(source)):
        return
    for call in loads:
        if _is_of_adapter(source, call.args[0]) and _is_loaded_here(source, call):
            silent = constant(keyword(call, "strict")) is False
            what = "strict=False leaves them out in silence" if silent else "they are refused"
            yield call, f"the model has no LoRA layers for these weights: {what}"


def _named(source: SourceFile) -> Iterator[ast.AST]:
    yield from source.of(ast.Call)
    yield from source.of(ast.alias)
    yield from source.of(ast.FunctionDef, ast.ClassDef)


def _makes(node: ast.AST) -> bool:
    """Whether a node is a name or a text that speaks of LoRA layers or an adapter's loading."""
    said = ""
    if isinstance(node, ast.Call):
        func = node.func
        said = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if any(one.arg == "adapter_path" for one in node.keywords):
            value = keyword(node, "adapter_path")
            return not (isinstance(value, ast.Constant) and value.value is None) and (
                "load" in said.lower() and not said.lower().startswith("load_for")
            )
    elif isinstance(node, ast.alias | ast.FunctionDef | ast.ClassDef):
        said = node.name
    return any(word in said.lower() for word in MAKING)


def _is_of_adapter(source: SourceFile, node: ast.expr) -> bool:
    """Whether what is loaded comes from a path that says adapter."""
    return any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and "adapter" in one.value.lower()
        and one.value.endswith((".safetensors", ".npz"))
        for one in parts(source, node)
    )


def _is_loaded_here(source: SourceFile, call: ast.Call) -> bool:
    """Whether the model is one that this function has just loaded."""
    held = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(held, ast.Name):
        return False
    return any(
        isinstance(one, ast.Call) and "load" in ast.unparse(one.func).lower()
        for one in parts(source, held)
    )
