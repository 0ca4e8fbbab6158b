"""What is written as in PyTorch."""

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile
from mlxdoctor.tables import shipped

#: Name -> what to write in its place.
IN_PLACE: dict[str, str] = {
    f"{package}.{name}": instead
    for package, names in shipped("mlxdoctor.lint", "pytorch_names.toml").items()
    for name, instead in names.items()
}
#: Packages of MLX whose names are looked for.
_PACKAGES = ("mlx.core", "mlx.nn", "mlx.optimizers", "mlx.utils")
#: Packages whose arrays have these methods; a file that imports one may well mean its arrays.
_OTHERS = frozenset(
    ("torch", "tensorflow", "tinygrad", "paddle", "jittor", "mindspore", "transformers", "keras")
)
#: Names that speak of arrays or gradients of the project's own.
_OWN = re.compile(r"(?!mlx\b).*(?:tensor|autograd|variable)|backward$")


@rule(
    Severity.ERROR,
    """
import mlx.nn as nn

def step(model, optimizer, inputs, targets):
    loss = nn.losses.cross_entropy(model(inputs), targets, reduction="mean")
    loss.backward()
    optimizer.step()
""",
    """
import mlx.core as mx
import mlx.nn as nn

def step(model, optimizer, inputs, targets):
    def loss_fn(model, inputs, targets):
        return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

    loss, grads = nn.value_and_grad(model, loss_fn)(model, inputs, targets)
    optimizer.update(model, grads)
    mx.eval(model.parameters(), optimizer.state)
""",
)
def missing_in_mlx(source: SourceFile) -> Hits:
    """What MLX does not have: mostly names of PyTorch.

    `mx.no_grad`, `nn.CrossEntropyLoss`, `nn.ModuleList`: code carried over from PyTorch reads well
    and stops at the first such line with an AttributeError. Each name is looked for in the MLX that
    is installed here. Arrays of MLX keep no gradient: there
    is no `loss.backward()` and no `requires_grad`. Gradients are what a function returns that
    `nn.value_and_grad` made, and the optimizer is handed them.

    A file that imports torch, or defines or imports such methods of its own, may mean those.
    """
    yield from _names(source)
    defined = [made.name for made in source.of(ast.FunctionDef, ast.ClassDef)]
    imported = set(source.imports.values())
    packages = {name.partition(".")[0] for name in imported}
    if packages & _OTHERS or any(_OWN.match(name.lower()) for name in (*defined, *imported)):
        return
    for call in source.calls(".backward"):
        if not call.args and not call.keywords and "loss" in ast.unparse(call.func).lower():
            remedy = "nn.value_and_grad(model, loss_fn) returns loss and gradients"
            yield call, f"MLX has no backward(): {remedy}"
            return
    for node in source.of(ast.Attribute):
        is_set = node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)
        if is_set and isinstance(node.value, ast.Name) and node.value.id != "self":
            yield node, "MLX has no requires_grad: use model.freeze() and model.unfreeze()"
            return


def _names(source: SourceFile) -> Hits:
    """Names looked for in the packages of MLX that these do not have."""
    names: list[tuple[ast.AST, str]] = [
        (node, f"{node.module}.{alias.name}")
        for node in source.of(ast.ImportFrom)
        for alias in node.names
        if not node.level
    ]
    names += [
        (node, source.name_of(node))
        for node in source.of(ast.Attribute)
        # The whole of a dotted name, and not its parts.
        if isinstance(node.ctx, ast.Load) and not isinstance(source.parent(node), ast.Attribute)
    ]
    for node, name in names:
        if (missing := _missing(name)) is None:
            continue
        # In a `try`, or below a `hasattr`, the file asks whether the name is there.
        above = source.enclosing(node, ast.Try, ast.If, ast.IfExp)
        while isinstance(above, ast.If | ast.IfExp) and "hasattr" not in ast.unparse(above.test):
            above = source.enclosing(above, ast.Try, ast.If, ast.IfExp)
        if above is None:
            instead = IN_PLACE.get(missing)
            remedy = f"write {instead}" if instead else "look for what it is called there"
            yield node, f"MLX has no {missing}: {remedy}"


@cache
def _missing(name: str) -> str | None:
    """The part of a name, from its beginning, that the MLX installed here lacks; None for none."""
    root = next((each for each in _PACKAGES if name.startswith(f"{each}.")), "")
    if not root:
        return None
    try:
        held: object = import_module(root)
    except ImportError:
        return name if name in IN_PLACE else None
    for part in name.removeprefix(f"{root}.").split("."):
        root = f"{root}.{part}"
        if not hasattr(held, part) and _spec_of(root) is None:
            return root
        held = getattr(held, part, None) or import_module(root)
        if not isinstance(held, ModuleType):
            return None
    return None


def _spec_of(name: str) -> object:
    """The module of that name; None where there is none."""
    try:
        return find_spec(name)
    except ModuleNotFoundError:
        return None
