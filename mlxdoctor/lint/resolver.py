"""What an expression stands for where it is used: followed through the names of its file.

Names mean what they were given last before the use, or anything they are given where that cannot
be told (branches, loops, closures). Nothing is followed into other files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from mlxdoctor.lint.bindings import Binding, Comprehension, Function
from mlxdoctor.lint.names import imported_name, is_same
from mlxdoctor.lint.tree import Tree

#: Names are followed through this many others.
MOST_STEPS = 8
#: A name that is given more often than this is taken for one that is not bound.
MOST_GIVEN = 100
#: Functions that return what they are given first, to be called as it is.
WRAPPERS = ("functools.partial", "mlx.core.compile", "mlx.core.checkpoint", "mlx.nn.checkpoint")
_EVERYWHERE = {"mx": "mlx.core", "nn": "mlx.nn", "optim": "mlx.optimizers"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Resolver(Tree):
    """A tree, and what its names mean."""

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """Local name -> what it stands for, such as `mx` -> `mlx.core`."""
        return {
            name: imported_name(one.imported)
            for names in self.found.names.values()
            for name, given in names.items()
            for one in given
            if one.imported
        }

    def given(self, node: ast.Name) -> list[Binding]:
        """What a name may have been given where it is used; nothing where it is not bound."""
        owner = inner = self.found.owner(node)
        while isinstance(inner, Comprehension):
            inner = self.found.owner(inner)
        near = True
        while owner is not None:
            known = self.found.names.get(owner, {}).get(node.id)
            # The names of a class are not seen from its methods.
            if known and (near or not isinstance(owner, ast.ClassDef)):
                if len(known) > MOST_GIVEN:
                    return []
                return self._reaching(node, known) if near and len(known) > 1 else known
            near = near and owner is not inner
            owner = self.found.owner(owner)
        return []

    def _reaching(self, use: ast.Name, known: list[Binding]) -> list[Binding]:
        """Those that may be the last before a use; what was overwritten before it is left out."""
        found, parents = self.found, self.found.parents
        place = found.number.get(use)
        if place is None:
            return known
        reaching: list[Binding] = []
        loop = self.above(use, *_LOOPS)
        for one in reversed(known):
            first = found.number[one.node]
            # `x = x + 1`: what is on the right is still the old one.
            after = first if one.value is None else found.ends[first] - 1
            if after >= place:
                # Later in the same loop comes before, the next time round.
                if loop is not None and self.is_within(one.node, loop):
                    reaching.append(one)
                continue
            if self.excludes(one.node, use):
                continue
            reaching.append(one)
            block = one.node
            while isinstance(parents.get(block), ast.With | ast.Try) or not isinstance(
                block, ast.stmt
            ):
                if block not in parents:
                    break
                block = parents[block]
            if self._is_before_in_block(block, use):
                if loop is not None and self.is_within(one.node, loop):
                    reaching = [each for each in reaching if found.number[each.node] < place]
                break
        return reaching or known

    def _is_before_in_block(self, statement: ast.AST, use: ast.AST) -> bool:
        """Whether a use cannot be reached without passing a statement."""
        above = self.found.parents.get(statement)
        if above is None or isinstance(above, Function | ast.Module):
            return True
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(above, block, None)
            if isinstance(inside, list) and statement in inside:
                return any(self.is_within(use, one) for one in inside)
        return False

    def attribute(self, node: ast.Attribute) -> list[Binding]:
        """What the methods of a class give an attribute of `self`, bases of the file included."""
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            return []
        return [
            one
            for each in self.family(self.class_of(node))
            for one in self.found.attributes.get(each, {}).get(node.attr, [])
        ]

    def family(self, first: ast.ClassDef | None) -> Iterator[ast.ClassDef]:
        """A class and its bases as far as they are defined in this file."""
        waiting, seen = [first] if first is not None else [], set[ast.AST]()
        while waiting:
            one = waiting.pop(0)
            if one in seen:
                continue
            seen.add(one)
            yield one
            for base in one.bases:
                given = self.given(base) if isinstance(base, ast.Name) else []
                waiting += [each.node for each in given if isinstance(each.node, ast.ClassDef)]

    def values(self, node: ast.expr, steps: int = MOST_STEPS) -> list[ast.expr]:
        """The expressions that one may stand for; itself where it cannot be followed further.

        Names, attributes of `self`, both sides of `a if c else b`, and elements of tuples that are
        unpacked are followed; a parameter or a loop's variable stands for itself.
        """
        known = self._known_values.get((node, steps))
        if known is None:
            known = self._known_values[node, steps] = tuple(self._values(node, steps))
        return list(known)

    @cached_property
    def _known_values(self) -> dict[tuple[ast.expr, int], tuple[ast.expr, ...]]:
        """Values that were asked for: names that lead to each other are followed once."""
        return {}

    def _values(self, node: ast.expr, steps: int) -> list[ast.expr]:
        if not steps:
            return [node]
        if isinstance(node, ast.IfExp):
            both = [*self.values(node.body, steps - 1), *self.values(node.orelse, steps - 1)]
            return list(dict.fromkeys(both))
        if isinstance(node, ast.NamedExpr | ast.Await):
            return self.values(node.value, steps - 1)
        if isinstance(node, ast.Subscript):
            return self._parts(node, steps)
        if isinstance(node, ast.Name):
            given = self.given(node)
        elif isinstance(node, ast.Attribute):
            given = self.attribute(node)
        else:
            return [node]
        followed = dict[ast.expr, None]()
        for one in given:
            values = [node] if one.value is None else self.values(one.value, steps - 1)
            followed |= dict.fromkeys(values)
        return list(followed) or [node]

    def _parts(self, node: ast.Subscript, steps: int) -> list[ast.expr]:
        """`pair[1]` of a tuple that is written in the file."""
        place = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(place, int):
            return [node]
        held = self.values(node.value, steps - 1)
        inside = [
            one.elts[place]
            for one in held
            if isinstance(one, ast.Tuple | ast.List) and -len(one.elts) <= place < len(one.elts)
        ]
        if len(inside) < len(held):
            return [node]
        return [each for one in inside for each in self.values(one, steps - 1)]

    def name_of(self, node: ast.AST, steps: int = MOST_STEPS) -> str:
        """The dotted name of an expression, imports and aliases resolved; else empty.

        A name that stands for nothing imported is itself: `print`, `model.layers`.
        """
        if isinstance(node, ast.Attribute):
            given = self.attribute(node) if steps else []
            if len(given) == 1 and (full := self._alias(given[0], steps)):
                return full
            held = self.name_of(node.value, steps)
            return f"{held}.{node.attr}" if held else ""
        if not isinstance(node, ast.Name):
            return ""
        given = self.given(node)
        imported = next((one.imported for one in given if one.imported), "")
        if imported:
            # The first of them: `try: import ... except ImportError: mx = None`.
            return imported_name(imported)
        if not given:
            return self.from_elsewhere.get(node.id, node.id)
        return (self._alias(given[0], steps) if len(given) == 1 and steps else "") or node.id

    def _alias(self, one: Binding, steps: int) -> str:
        """The imported name that a binding gives another name; empty where it is none."""
        if not isinstance(one.value, ast.Name | ast.Attribute):
            return ""
        full = self.name_of(one.value, steps - 1)
        return full if full.partition(".")[0] in self._roots else ""

    @cached_property
    def from_elsewhere(self) -> Mapping[str, str]:
        """What `from common import *` brings under the names that MLX is imported by everywhere.

        `mx` is nothing else's; `nn` and `optim` are MLX's in its company.
        """
        if not any(one.names[0].name == "*" for one in self.of(ast.ImportFrom)):
            return {}
        names = {one.id: one for one in self.of(ast.Name) if one.id in _EVERYWHERE}
        unbound = {name for name, one in names.items() if not self.given(one)}
        return {name: _EVERYWHERE[name] for name in unbound} if "mx" in unbound else {}

    @cached_property
    def _roots(self) -> frozenset[str]:
        return frozenset(name.partition(".")[0] for name in self.imports.values())

    def is_named(self, node: ast.AST, *names: str) -> bool:
        """Whether an expression is one of these names, wherever it is re-exported from."""
        full = self.name_of(node)
        return any(is_same(full, name) for name in names)

    def function_named(self, node: ast.AST) -> Function | None:
        """The function of this file that an expression is: by a name, as a method, as a lambda.

        `partial(f, ...)` and `mx.compile(f)` are f.
        """
        if node not in self._known_functions and isinstance(node, ast.expr):
            self._known_functions[node] = self._functions_of(node, MOST_STEPS)
        found = self._known_functions.get(node, [])
        # Two of a name: which of them is meant cannot be told.
        return found[0] if len(found) == 1 else None

    @cached_property
    def _known_functions(self) -> dict[ast.AST, list[Function]]:
        return {}

    def _functions_of(self, node: ast.expr, steps: int) -> list[Function]:
        if isinstance(node, ast.Lambda):
            return [node]
        if not steps:
            return []
        if isinstance(node, ast.Call):
            wraps = node.args and self.is_named(node.func, *WRAPPERS)
            return self._functions_of(node.args[0], steps - 1) if wraps else []
        if isinstance(node, ast.Name):
            given = self.given(node)
        elif isinstance(node, ast.Attribute):
            given = self.attribute(node) or self._methods(node)
        else:
            return []
        found: list[Function] = []
        for one in given:
            if isinstance(one.node, Function):
                found.append(one.node)
            elif one.value is not None:
                found += self._functions_of(one.value, steps - 1)
        return list(dict.fromkeys(found))

    def _methods(self, node: ast.Attribute) -> list[Binding]:
        """The methods an attribute may be; of anything but `self` the one of that name."""
        if not isinstance(node.value, ast.Name) or node.value.id in self.imports:
            return []
        own = node.value.id in {"self", "cls"}
        classes = self.family(self.class_of(node)) if own else self.of(ast.ClassDef)
        found = [self.found.names.get(one, {}).get(node.attr, []) for one in classes]
        found = [one for one in found if one]
        if own:
            return found[0][-1:] if found else []
        return found[0][-1:] if len(found) == 1 else []

    def reached(self, scope: ast.AST) -> tuple[ast.AST, ...]:
        """A part of the file, and the functions of this file that it calls, directly or not."""
        found, waiting = dict.fromkeys([scope]), [scope]
        while waiting:
            for call in self.of(ast.Call, within=waiting.pop()):
                function = self.function_named(call.func)
                if function is not None and function not in found:
                    found[function] = None
                    waiting.append(function)
        return tuple(found)
