"""What a function does to a model on its way to LoRA: it is frozen, converted, unfrozen.

Helpers of the same file are looked into: what they do to their parameter they do to what they are
handed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mlxdoctor.lint.python_file import Function, SourceFile

#: The conversion that mlx-lm offers, or a copy of it.
CONVERTERS = ("*.linear_to_lora_layers",)
#: Helpers are followed so many calls deep.
_DEPTH = 3
#: Calls that learn something of a model and leave it as it is.
_HARMLESS = (
    "print", "len", "str", "repr", "type", "isinstance", "hasattr", "getattr", "id", "sum",
    "callable", "mlx.core.eval", "mlx.utils.tree_flatten", "mlx.nn.value_and_grad",
)  # fmt: skip


class Deed(Enum):
    """What is done to a model."""

    FREEZE = "freeze"
    FREEZE_PART = "freeze a part"
    UNFREEZE = "unfreeze"
    CONVERT = "convert"


@dataclass(frozen=True)
class Done:
    """One thing that is done to a model.

    Attributes:
        call: the call in the function that was asked about; a helper's, where a helper does it.
        model: the model as the function writes it: `model`, `self.model`.
    """

    deed: Deed
    call: ast.Call
    model: str


def done_in(source: SourceFile, scope: ast.AST, depth: int = _DEPTH) -> list[Done]:
    """What is done to models in a function (or the module's own statements), in source order."""
    if not _speaks_of_it(source):
        return []
    found: list[Done] = []
    for call in source.of(ast.Call, within=scope):
        if source.scope(call) is not scope:
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"freeze", "unfreeze"}:
            found.append(Done(_freezing(call), call, ast.unparse(call.func.value)))
            continue
        function = source.function_named(call.func)
        if function is not None and function is not scope and depth:
            found += _of_helper(source, call, function, depth)
        if call.args and source.is_call(call, *CONVERTERS):
            found.append(Done(Deed.CONVERT, call, ast.unparse(call.args[0])))
    return found


def _speaks_of_it(source: SourceFile) -> bool:
    return any(source.calls(".freeze", ".unfreeze", *CONVERTERS))


def _freezing(call: ast.Call) -> Deed:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "unfreeze":
        return Deed.UNFREEZE
    partly = bool(call.args) or any(one.arg in {"keys", "recurse"} for one in call.keywords)
    return Deed.FREEZE_PART if partly else Deed.FREEZE


def _of_helper(
    source: SourceFile, call: ast.Call, function: Function, depth: int
) -> Iterator[Done]:
    """What a function of this file does to what it is handed, in the words of its caller."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.parents.get(function), ast.ClassDef) and isinstance(
        call.func, ast.Attribute
    ):
        names = names[1:]
    handed = {name: ast.unparse(one) for name, one in zip(names, call.args, strict=False)}
    handed |= {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
    for one in done_in(source, function, depth - 1):
        if one.model in handed:
            yield Done(one.deed, call, handed[one.model])
        elif one.model.startswith("self."):
            yield Done(one.deed, call, one.model)


def is_handed_on(source: SourceFile, scope: ast.AST, model: str) -> bool:
    """Whether a model is given to a function that another file defines, which may do anything."""
    for call in source.of(ast.Call, within=scope):
        if source.is_call(call, *CONVERTERS, *_HARMLESS):
            continue
        full = source.name_of(call.func)
        if full.startswith(("mlx.", "mlx_lm.")) or source.function_named(call.func) is not None:
            continue
        handed = [*call.args, *(one.value for one in call.keywords)]
        if any(ast.unparse(one) == model for one in handed):
            return True
    return False
