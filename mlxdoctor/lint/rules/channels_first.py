"""A convolution that is given channels before the length, as in PyTorch.

MLX's convolutions take (batch, length, channels) and (batch, height, width, channels). Channels in
second place either do not fit the weights, or, where the sizes happen to agree, convolve over the
wrong axis.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile, constant, keyword
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
#: A layout as comments and docstrings write it.
_SAID = re.compile(
    r"\b(?P<name>\w+)\s*(?::|is|=|has shape|of shape)?\s*[\[(]\s*(?:batch\w*|b|n)\s*,"
    r"\s*(?:\w*channels?|c)\s*,\s*(?:length|len|l|time|t|steps|seq\w*|height|h)\b",
    re.IGNORECASE,
)
_MOVES = (".swapaxes", ".transpose", ".moveaxis", ".reshape", ".permute", "mlx.core.swapaxes",
          "mlx.core.transpose", "mlx.core.moveaxis", "mlx.core.reshape")  # fmt: skip


@rule(
    severity=Severity.ERROR,
    symptom="step-forward.failed",
    bad=BAD,
    good=GOOD,
    words=(
        "Conv1d|Conv2d|Conv3d",
        "[:, None|expand_dims|b, c,|B, C,|n, c,|N, C,|, channels,|, channel,|_channels, ",
    ),
)
def channels_first(source: SourceFile) -> Hits:
    """Channels that are put, or said to be, in second place right before a convolution.

    A new second axis is the channels' where the convolution takes one channel; otherwise it may be
    a length of one.
    """
    if not any(source.calls(*CONVOLUTIONS)):
        return
    for call in source.of(ast.Call):
        if not call.args or not isinstance(call.func, ast.Attribute):
            continue
        made = [one for one in source.values(call.func) if source.is_call(one, *CONVOLUTIONS)]
        if not made:
            continue
        given = call.args[0]
        if all(one.args and constant(one.args[0]) == 1 for one in made) and all(
            _is_second(source, one) for one in source.values(given)
        ):
            yield call, "the channels are the last axis in MLX: (batch, length, channels)"
        elif isinstance(given, ast.Name) and _is_said_second(source, call, given):
            yield (
                call,
                f"{given.id!r} is said to have its channels second, and they are the last "
                "axis in MLX: (batch, length, channels)",
            )


def _is_said_second(source: SourceFile, call: ast.Call, given: ast.Name) -> bool:
    """Whether a comment or the docstring of the function says so, and nothing moves an axis."""
    scope = source.scope(call)
    if not isinstance(scope, ast.FunctionDef) or any(source.calls(*_MOVES, within=scope)):
        return False
    lines = range(scope.lineno, call.lineno + 1)
    comments = [source.comments[one] for one in lines if one in source.comments]
    said = [ast.get_docstring(scope) or "", *comments]
    # What was assigned here has the layout that its last line gives it.
    handed_in = all(isinstance(one.node, ast.arg) for one in source.given(given))
    return handed_in and any(
        found["name"] == given.id for text in said for found in _SAID.finditer(text)
    )


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
