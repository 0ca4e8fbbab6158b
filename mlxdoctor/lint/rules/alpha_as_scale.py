"""LoRA's alpha given as the scale.

mlx-lm's `scale` multiplies A·B as it is. PEFT's `lora_alpha` is divided by the rank first (by its
root with rsLoRA): passed on as the scale, the update is as many times too large.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
def parameters(config):
    return {"rank": config.r, "scale": config.lora_alpha, "dropout": 0.0}
"""
GOOD = """
def parameters(config):
    return {"rank": config.r, "scale": config.lora_alpha / config.r, "dropout": 0.0}
"""


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD)
def alpha_as_scale(source: SourceFile) -> Hits:
    """A value named alpha, undivided, for a key or argument named scale."""
    for value in _scales(source.tree):
        plain = isinstance(value, ast.Name | ast.Attribute | ast.Subscript)
        if plain and "alpha" in ast.unparse(value).lower():
            yield value, f"{ast.unparse(value)} is to be divided by the rank to be a scale"


def _scales(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (one.value for one in node.keywords if one.arg == "scale")
        elif isinstance(node, ast.Dict):
            yield from (
                value
                for key, value in zip(node.keys, node.values, strict=True)
                if constant(key) == "scale"
            )
