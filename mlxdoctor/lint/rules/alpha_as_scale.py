"""LoRA's alpha given as the scale.

mlx-lm's `scale` multiplies A·B as it is. PEFT's `lora_alpha` is divided by the rank first (by its
root with rsLoRA): passed on as the scale, the update is as many times too large.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
from mlx_lm.tuner.utils import linear_to_lora_layers

def convert(model, config):
    parameters = {"rank": config.r, "scale": config.lora_alpha, "dropout": 0.0}
    linear_to_lora_layers(model, 16, parameters)
"""
GOOD = """
from mlx_lm.tuner.utils import linear_to_lora_layers

def convert(model, config):
    parameters = {"rank": config.r, "scale": config.lora_alpha / config.r, "dropout": 0.0}
    linear_to_lora_layers(model, 16, parameters)
"""


#: What mlx-lm's layers are made by, or a copy of them.
_LAYERS = ("LoRALinear", "LoRASwitchLinear", "LoRAEmbedding", "DoRALinear", "DoRAEmbedding")
_RANKS = frozenset({"rank", "r", "lora_rank", "lora_r"})


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD, words=("alpha", "scale", "LoRA|DoRA|lora|rank"))
def alpha_as_scale(source: SourceFile) -> Hits:
    """A value named alpha, nowhere divided, for the scale of mlx-lm's parameters or layers."""
    for value in _scales(source):
        if all(_is_alpha(one) for one in source.values(value)):
            yield value, f"{ast.unparse(value)} is to be divided by the rank to be a scale"


def _is_alpha(node: ast.expr) -> bool:
    """A name that says alpha and nothing of a scale: `alpha_scale` was made from both."""
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return False
    said = ast.unparse(node).lower()
    return "alpha" in said and not any(word in said for word in ("scal", "ratio", "over", "alphas"))


def _scales(source: SourceFile) -> Iterator[ast.expr]:
    for node in source.of(ast.Dict):
        keys = {constant(key): value for key, value in zip(node.keys, node.values, strict=True)}
        if "scale" in keys and keys.keys() & _RANKS:
            yield keys["scale"]
    for call in source.of(ast.Call):
        parts = source.name_of(call.func).split(".")
        if parts[0] == "mlx_lm" and any(part in _LAYERS for part in parts):
            value = keyword(call, "scale")
            yield from [value] if value is not None else []
