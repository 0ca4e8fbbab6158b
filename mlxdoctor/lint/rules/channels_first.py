"""A convolution that is given channels before the length, as in PyTorch.

MLX's convolutions take (batch, length, channels) and (batch, height, width, channels). Channels in
second place either do not fit the weights, or, where the sizes happen to agree, convolve over the
wrong axis.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, assigned, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.nn as nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 3)

    def __call__(self, series):
        return self.conv(series[:, None, :])
"""
GOOD = """
import mlx.nn as nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 3)

    def __call__(self, series):
        return self.conv(series[:, :, None])
"""
CONVOLUTIONS = tuple(f"mlx.nn.Conv{n}d" for n in (1, 2, 3))


@rule(severity=Severity.ERROR, symptom="step-forward.failed", bad=BAD, good=GOOD)
def channels_first(source: SourceFile) -> Hits:
    """A channel axis is added in second place right before a convolution."""
    convolutions = {
        target.attr
        for node in source.nodes
        if isinstance(node, ast.Assign) and source.is_call(node.value, *CONVOLUTIONS)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in convolutions
            and node.args
            and _is_second(source, _value(source, node))
        ):
            yield node, "the channels are the last axis in MLX: (batch, length, channels)"


def _value(source: SourceFile, call: ast.Call) -> ast.expr:
    given = call.args[0]
    if not isinstance(given, ast.Name):
        return given
    values = assigned(source.scope(call), given.id)
    return values[0] if len(values) == 1 else given


def _is_second(source: SourceFile, node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        parts = node.slice.elts
        if len(parts) < 2 or not isinstance(parts[1], ast.Constant):
            return False
        more = len(parts) > 2 or isinstance(parts[0], ast.Slice)
        return parts[1].value is None and more
    if source.is_call(node, "mlx.core.expand_dims", ".expand_dims"):
        axis = [keyword(node, "axis"), *node.args[1:]]
        return constant(next(filter(None, axis), None)) == 1
    return False
