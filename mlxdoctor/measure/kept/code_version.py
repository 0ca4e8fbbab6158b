"""The version of the code that measures something: what it measures depends on it as on files."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

#: The package whose modules measure.
MEASURING = ("mlxdoctor.measure", "mlxdoctor.models")


def code_version(kind: type[Any]) -> str:
    """A hash of the module of a kind of evidence, and of what it imports to measure with.

    Comments, docstrings and blank lines do not count: all else, the figures set in it (rows,
    tokens, seeds) as much as the steps, decides what is measured.
    """
    return _version(kind.__module__)


@cache
def _version(module: str) -> str:
    digest = hashlib.sha256()
    waiting, seen = [module], {module}
    while waiting:
        name = waiting.pop()
        text, imported = _module(name)
        digest.update(f"{name}\n{text}\n".encode())
        new = sorted({one for one in imported if _measures(one)} - seen)
        waiting += new
        seen |= set(new)
    return digest.hexdigest()


def _measures(name: str) -> bool:
    # Keeping is no measuring.
    return name.startswith(MEASURING) and not name.startswith("mlxdoctor.measure.kept")


@cache
def _module(name: str) -> tuple[str, tuple[str, ...]]:
    """The code of a module, and the modules it imports."""
    try:
        found = importlib.util.find_spec(name)
        source = Path(found.origin).read_text("utf-8") if found and found.origin else ""
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, ImportError):
        return "", ()
    dropped = {line for first, last in _docstrings(tree) for line in range(first, last + 1)}
    kept = [
        line.rstrip()
        for number, line in enumerate(source.splitlines(), 1)
        if number not in dropped and line.strip() and not line.lstrip().startswith("#")
    ]
    return "\n".join(kept), tuple(_imported(tree))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            yield first.lineno, first.end_lineno or first.lineno


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
