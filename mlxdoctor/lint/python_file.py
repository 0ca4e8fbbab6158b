"""A Python file as the rules see it: its tree, what names mean, and who calls what.

What a rule asks a `SourceFile`:

- `calls("mlx_lm.load", ".freeze")`: calls by what they mean, through aliases, re-exports, local
  names and attributes of `self`; `*.linear_to_lora_layers` is one from anywhere.
- `of(ast.BinOp)`: the nodes of a kind, in the file or `within=` a node.
- `name_of(node)`, `is_named(node, ...)`: the dotted name an expression stands for.
- `values(node)`: the expressions it may stand for where it is used; after `a, b = f(x)` the value
  of `b` is the part `f(x)[1]`.
- `function_named(node)`: the function of this file that it is; `reached(scope)`: a function with
  those that it calls, so that `calls(..., through=scope)` finds what a helper does.
- `differentiated()`, `uses_of(call)`: losses, and where what a call returned is called.
- `packages(scope)`: which packages a part of the file uses.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from mlxdoctor.evidence.source import read_text, require_file
from mlxdoctor.lint.bindings import Function, index
from mlxdoctor.lint.names import is_mlx, is_same
from mlxdoctor.lint.resolver import Resolver
from mlxdoctor.lint.syntax import syntax_tree
from mlxdoctor.safety.reading_limits import current, exceeded

__all__ = ["Function", "SourceFile", "assigned", "body", "constant", "keyword", "names_in"]

#: Packages with arrays, modules or optimizers of their own.
OTHER_ARRAYS = frozenset(("torch", "tensorflow", "jax", "keras", "tinygrad", "paddle", "numpy"))


@dataclass(frozen=True)
class SourceFile(Resolver):
    """One parsed file.

    Attributes:
        path: the file; as the user named it.
        text: its source.
        lines: its lines, without line breaks.
    """

    path: Path
    text: str
    lines: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Parse a file.

        Raises:
            InputError: it cannot be read, or is not Python.
        """
        # An empty file is a good one here: packages have them.
        text = read_text(path, "source_bytes")[0] if require_file(path) else ""
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> SourceFile:
        """Parse source text; `path` is what it is called.

        Raises:
            InputError: it cannot be read as Python, or is more of it than the limit `source_nodes`.
        """
        tree = syntax_tree(text, path)
        found = index(tree, current().source_nodes)
        if found is None:
            raise exceeded(path, "has more code than a trainer", "source_nodes")
        return cls(tree, found, path, text, tuple(text.splitlines()))

    @property
    def nodes(self) -> list[ast.AST]:
        """Every node, in source order; `of` gives those of a kind."""
        return self.found.nodes

    @property
    def parents(self) -> Mapping[ast.AST, ast.AST]:
        """Node -> the node it is part of."""
        return self.found.parents

    @cached_property
    def comments(self) -> Mapping[int, str]:
        """Line number -> the comment on it."""
        return dict(_comments(self.text)) if "#" in self.text else {}

    @cached_property
    def uses_mlx(self) -> bool:
        """Whether the file imports MLX or a package made for it; or speaks of it, and may have it
        from a file of its own package, and imports no other arrays.
        """
        names = [*self.imports.values(), *self.from_elsewhere.values()]
        if any(is_mlx(name) for name in names):
            return True
        relative = any(name.startswith(".") for name in names)
        others = any(name.partition(".")[0] in OTHER_ARRAYS for name in names)
        return relative and not others and "mlx" in self.text

    def packages(self, within: ast.AST | None = None) -> frozenset[str]:
        """The top-level packages whose names are used below a node, or anywhere in the file."""
        used = {one.id: one for one in self.of(ast.Name, within=within) if one.id in self.imports}
        return frozenset(self.name_of(one).partition(".")[0] for one in used.values())

    def calls(
        self, *names: str, within: ast.AST | None = None, through: ast.AST | None = None
    ) -> Iterator[ast.Call]:
        """Calls of any of these: `mlx.core.eval`, `.freeze` for a method, `*.train` from anywhere.

        Args:
            within: only those below this node.
            through: only those below this node, or in functions of this file that it calls.
        """
        if through is not None:
            for one in self.reached(through):
                yield from self.calls(*names, within=one)
            return
        wanted: dict[str, list[str]] = {}
        for name in names:
            wanted.setdefault(name.rpartition(".")[2], []).append(name)
        found = {
            call: self.found.number[call]
            for last in wanted
            for call in self._calls_by_last.get(last, ())
            if (within is None or self.is_within(call, within))
            and self.is_call(call, *wanted[last])
        }
        yield from sorted(found, key=found.__getitem__)

    @cached_property
    def _calls_by_last(self) -> Mapping[str, list[ast.Call]]:
        """Last part of a name -> the calls of it, as it is written and as it is resolved."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.of(ast.Call):
            lasts = {self.name_of(call.func).rpartition(".")[2]}
            if isinstance(call.func, ast.Attribute):
                lasts.add(call.func.attr)
            for last in lasts:
                found.setdefault(last, []).append(call)
        return found

    def is_call(self, node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
        """Whether a node is a call of one of these names; see `calls`."""
        if not isinstance(node, ast.Call):
            return False
        if isinstance(node.func, ast.Attribute) and f".{node.func.attr}" in names:
            return True
        full = self.name_of(node.func)
        return bool(full) and any(is_same(full, name) for name in names)

    def differentiated(self) -> Iterator[tuple[ast.Call, Function, str]]:
        """Calls of `mx.value_and_grad` and `mx.grad`: the loss, and its parameter they go by."""
        for call in self.calls("mlx.core.value_and_grad", "mlx.core.grad"):
            function = self.function_named(call.args[0]) if call.args else None
            given = keyword(call, "argnums")
            place = 0 if given is None else constant(given)
            if function is None or not isinstance(place, int):
                continue
            if self._bound_first(call.args[0]):
                # `partial(loss, model)`: which parameter is meant would have to be counted.
                continue
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            # A bound method has lost its `self`.
            if isinstance(self.parents.get(function), ast.ClassDef) and names[:1] in (
                ["self"],
                ["cls"],
            ):
                del names[0]
            if 0 <= place < len(names):
                yield call, function, names[place]

    def _bound_first(self, node: ast.expr) -> bool:
        """Whether a function is given its first arguments beforehand."""
        return any(
            self.is_call(one, "functools.partial") and len(one.args) > 1
            for one in self.values(node)
        )

    def uses_of(self, made: ast.Call) -> Iterator[ast.Call]:
        """Where a function that a call returns is called: at once, or by the name it was given."""
        parent = self.parents.get(made)
        if isinstance(parent, ast.Call) and parent.func is made:
            yield parent
            return
        for call in self.of(ast.Call):
            if isinstance(call.func, ast.Name | ast.Attribute) and made in self.values(call.func):
                yield call

    def are_parameters(self, node: ast.expr) -> bool:
        """Whether an expression is what `parameters()` of a module returns, or a name for it."""
        return all(
            self.is_call(one, ".parameters", ".trainable_parameters") for one in self.values(node)
        )


def body(function: Function) -> list[ast.AST]:
    """The statements of a function; the expression of a lambda."""
    return [function.body] if isinstance(function, ast.Lambda) else list(function.body)


def names_in(node: ast.AST) -> set[str]:
    """Every plain name that is read or written below a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def assigned(scope: ast.AST, name: str) -> list[ast.expr]:
    """The values that a name is given anywhere below a node, whatever is used after."""
    return [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id == name for one in node.targets)
    ]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def constant(node: ast.AST | None) -> object:
    """The value of a literal, negative numbers included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


def _comments(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, IndentationError):
        return
