"""A convolution that is given channels before the length, as in PyTorch.

MLX's convolutions take (batch, length, channels) and (batch, height, width, channels). Channels in
second place either do not fit the weights, or, where the sizes happen to agree, convolve over the
wrong axis.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, constant

BAD = """
import mlx.nn as nn

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 3)

    def __call__(self, series):
        return self.conv(series[:, None, :])
"""
GOOD = BAD.replace("[:, None, :]", "[:, :, None]")
_CONVOLUTIONS = tuple(f"mlx.nn.Conv{n}d" for n in (1, 2, 3))
#: A layout as comments and docstrings write it.
_LAYOUT = re.compile(
    r"\b(?P<name>\w+)\s*(?::|is|=|has shape|of shape)?\s*[\[(]\s*(?:batch\w*|b|n)\s*,"
    r"\s*(?:\w*channels?|c)\s*,\s*(?:length|len|l|time|t|steps|seq\w*|height|h)\b",
    re.IGNORECASE,
)
_MOVES = (".swapaxes", ".transpose", ".moveaxis", ".reshape", ".permute")


@rule(Severity.ERROR, BAD, GOOD, symptoms=("step-forward.failed",))
def channels_first(source: SourceFile) -> Hits:
    """Channels that are put, or said to be, in second place right before a convolution.

    A new second axis is the channels' where the convolution takes one channel; otherwise it may be
    a length of one.
    """
    if not any(source.calls(*_CONVOLUTIONS)):
        return
    for call in source.of(ast.Call):
        if not call.args or not isinstance(call.func, ast.Attribute):
            continue
        given = call.args[0]
        made = [one for one in source.values(call.func) if source.is_call(one, *_CONVOLUTIONS)]
        takes_one = all(one.args and constant(one.args[0]) == 1 for one in made)
        if made and takes_one and all(map(_is_second_axis, source.values(given))):
            yield call, "the channels are the last axis in MLX: (batch, length, channels)"
        elif made and isinstance(given, ast.Name) and _is_said_second(source, call, given):
            yield (
                call,
                f"{given.id!r} is said to have its channels second, and they are the last axis in "
                "MLX: (batch, length, channels)",
            )


def _is_second_axis(node: ast.expr) -> bool:
    """`x[:, None]` or `x[:, None, :]`."""
    match node:
        case ast.Subscript(slice=ast.Tuple(elts=[ast.Slice(), ast.Constant(value=None), *_])):
            return True
    return False


def _is_said_second(source: SourceFile, call: ast.Call, given: ast.Name) -> bool:
    """Whether a comment or the docstring says so of a parameter, and nothing moves an axis."""
    scope = source.scope(call)
    if not isinstance(scope, ast.FunctionDef) or any(source.calls(*_MOVES, within=scope)):
        return False
    lines = range(scope.lineno, call.lineno + 1)
    texts = [ast.get_docstring(scope) or "", *(source.comments.get(line, "") for line in lines)]
    handed_in = all(isinstance(binding.node, ast.arg) for binding in source.given(given))
    return handed_in and any(
        layout["name"] == given.id for text in texts for layout in _LAYOUT.finditer(text)
    )
