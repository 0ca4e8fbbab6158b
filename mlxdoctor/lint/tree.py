"""The nodes of a file: those of a kind, those below a node, and where a node is."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar, overload

from mlxdoctor.lint.bindings import Function, Index

_A = TypeVar("_A", bound=ast.AST)
_B = TypeVar("_B", bound=ast.AST)
_C = TypeVar("_C", bound=ast.AST)


@dataclass(frozen=True)
class Tree:
    """A syntax tree, indexed.

    Attributes:
        tree: the syntax tree.
        found: its nodes and what they bind.
    """

    tree: ast.Module
    found: Index

    @overload
    def of(self, one: type[_A], /, *, within: ast.AST | None = None) -> Iterator[_A]: ...
    @overload
    def of(
        self, one: type[_A], other: type[_B], /, *, within: ast.AST | None = None
    ) -> Iterator[_A | _B]: ...
    @overload
    def of(
        self, one: type[_A], other: type[_B], third: type[_C], /, *, within: ast.AST | None = None
    ) -> Iterator[_A | _B | _C]: ...
    def of(self, *kinds: type[ast.AST], within: ast.AST | None = None) -> Iterator[ast.AST]:
        """The nodes of these kinds in source order, `within` itself included."""
        found, places = self.found, list[int]()
        first = 0 if within is None else found.number.get(within)
        if first is None:
            # A part that is not in the source has no nodes of its own.
            return
        end = found.ends[first]
        for kind in kinds:
            known = found.kinds.get(kind, [])
            places += known[bisect_left(known, first) : bisect_left(known, end)]
        if len(kinds) > 1:
            places.sort()
        for place in places:
            yield found.nodes[place]

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node is in, or the module."""
        owner = self.found.owner(node)
        while owner is not None and not isinstance(owner, Function):
            owner = self.found.owner(owner)
        return owner or self.tree

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node is in."""
        owner = self.found.owner(node)
        while owner is not None and not isinstance(owner, ast.ClassDef):
            owner = self.found.owner(owner)
        return owner

    def is_within(self, node: ast.AST, above: ast.AST) -> bool:
        """Whether a node is below another, or it itself."""
        place, first = self.found.number.get(node), self.found.number.get(above)
        if place is None or first is None:
            return False
        return first <= place < self.found.ends[first]

    def excludes(self, node: ast.AST, use: ast.AST) -> bool:
        """Whether two nodes are in different branches of one condition: never both run."""
        at = node
        while (above := self.found.parents.get(at)) is not None and not isinstance(above, Function):
            if isinstance(above, ast.If) and at is not above.test and self.is_within(use, above):
                branch = above.body if at in above.body else above.orelse
                other = above.orelse if at in above.body else above.body
                if not any(self.is_within(use, one) for one in branch):
                    return any(self.is_within(use, one) for one in other)
            at = above
        return False

    def above(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node of these kinds that a node is in, within its function."""
        at: ast.AST | None = self.found.parents.get(node)
        while at is not None and not isinstance(at, Function):
            if isinstance(at, kinds):
                return at
            at = self.found.parents.get(at)
        return None
