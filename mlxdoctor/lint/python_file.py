"""A Python file as the rules see it: its tree, what names mean, and who calls what."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeGuard

from mlxdoctor.evidence.source import read_text, require_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
#: Names that are the same thing: MLX re-exports, and mlx-lm's tuner.
_SAME = {
    "mlx.optimizers.optimizers": "mlx.optimizers",
    "mlx.nn.utils.value_and_grad": "mlx.nn.value_and_grad",
}


@dataclass(frozen=True)
class SourceFile:
    """One parsed file.

    Attributes:
        path: the file; as the user named it.
        lines: its lines, without line breaks.
        tree: the syntax tree.
        nodes: every node of it, as `ast.walk` gives them.
        imports: local name -> what it stands for, such as `mx` -> `mlx.core`.
        parents: node -> the node it is part of.
        comments: line number -> the comment on it.
    """

    path: Path
    lines: tuple[str, ...]
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imports: Mapping[str, str]
    parents: Mapping[ast.AST, ast.AST]
    comments: Mapping[int, str]

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
            InputError: it is not Python, or more of it than the limit `source_nodes`.
        """
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            at = f" (line {line})" if line else ""
            raise InputError(path, f"is not valid Python{at}", "name Python files") from None
        most = current().source_nodes
        if len(nodes := tuple(islice(ast.walk(tree), most + 1))) > most:
            raise exceeded(path, "has more code than a trainer", "source_nodes")
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        return cls(
            path=path,
            lines=tuple(text.splitlines()),
            tree=tree,
            imports=dict(_imports(tree)),
            nodes=nodes,
            parents=parents,
            comments=dict(_comments(text)),
        )

    def name_of(self, node: ast.AST) -> str:
        """The dotted name of an expression with imports resolved; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imports.get(node.id, node.id))
        full = ".".join(reversed(parts))
        for alias, name in _SAME.items():
            if full == alias or full.startswith(f"{alias}."):
                return name + full[len(alias) :]
        return full

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of any of these names, resolved: `mlx.core.eval`, or `.freeze` for a method."""
        for node in self.nodes if within is None else ast.walk(within):
            if self.is_call(node, *names):
                yield node

    def is_call(self, node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
        """Whether a node is a call of one of these names."""
        if not isinstance(node, ast.Call):
            return False
        methods = {name[1:] for name in names if name.startswith(".")}
        if isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            return True
        return self.name_of(node.func) in names

    def function_named(self, node: ast.AST) -> Function | None:
        """The function of this file that an expression names: a name, `self.name`, a lambda."""
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, ast.Name):
            wanted = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            wanted = node.attr
        else:
            return None
        found = self._functions.get(wanted, ())
        # Two of a name: which of them is meant cannot be told.
        return found[0] if len(found) == 1 else None

    @cached_property
    def _functions(self) -> Mapping[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for one in self.nodes:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(one.name, []).append(one)
        return found

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node is in, or the module."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, Function):
                return node
        return self.tree

    def differentiated(self) -> Iterator[tuple[ast.Call, Function, str]]:
        """Calls of `mx.value_and_grad` and `mx.grad`: the loss, and its parameter they go by."""
        for call in self.calls("mlx.core.value_and_grad", "mlx.core.grad"):
            function = self.function_named(call.args[0]) if call.args else None
            given = keyword(call, "argnums")
            place = 0 if given is None else constant(given)
            if function is None or not isinstance(place, int):
                continue
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            # A bound method has lost its `self`.
            if isinstance(self.parents.get(function), ast.ClassDef) and names[:1] in (
                ["self"],
                ["cls"],
            ):
                del names[0]
            if place < len(names):
                yield call, function, names[place]

    def uses_of(self, made: ast.Call) -> Iterator[ast.Call]:
        """Where a function that a call returns is called: at once, or by the name it was given."""
        parent = self.parents.get(made)
        if isinstance(parent, ast.Call) and parent.func is made:
            yield parent
        targets = parent.targets if isinstance(parent, ast.Assign) else []
        for target in targets:
            within = self.scope(made) if isinstance(target, ast.Name) else self.tree
            name = ast.unparse(target)
            for node in ast.walk(within):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                    yield node

    def are_parameters(self, node: ast.expr) -> bool:
        """Whether an expression is what `parameters()` of a module returns, or a name for it."""
        if isinstance(node, ast.Name):
            values = assigned(self.scope(node), node.id)
            return bool(values) and all(
                self.is_call(one, ".parameters", ".trainable_parameters") for one in values
            )
        return self.is_call(node, ".parameters", ".trainable_parameters")


def body(function: Function) -> list[ast.AST]:
    """The statements of a function; the expression of a lambda."""
    return [function.body] if isinstance(function, ast.Lambda) else list(function.body)


def names_in(node: ast.AST) -> set[str]:
    """Every plain name that is read or written below a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def assigned(scope: ast.AST, name: str) -> list[ast.expr]:
    """The values that a name is given below a node."""
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


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.asname:
                    yield one.asname, one.name
                else:
                    yield one.name.split(".")[0], one.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


def _comments(text: str) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, IndentationError):
        return
