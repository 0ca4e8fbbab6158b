"""What the names of a file are given, and where: imports, assignments, definitions, parameters.

One walk over the tree numbers its nodes in source order and notes, for each function, class,
comprehension and the module, which names it binds. What a name means where it is used is asked of
`python_file.SourceFile`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
#: What has names of its own.
Owner = Function | Comprehension | ast.ClassDef | ast.Module
_OWNERS = frozenset((*Function.__args__, *Comprehension.__args__, ast.ClassDef, ast.Module))


@dataclass(frozen=True, slots=True)
class Binding:
    """One place that gives a name a meaning.

    Attributes:
        node: the statement, import, definition or parameter.
        value: what the name is given; the part of it where a tuple is unpacked (`f(x)[1]`); None
            where that is no expression: a parameter, a loop's variable, `x += 1`.
        imported: the dotted name of an import, empty otherwise; a relative one begins with dots.
    """

    node: ast.AST
    value: ast.expr | None = None
    imported: str = ""


@dataclass(frozen=True)
class Index:
    """The nodes of a tree in source order, and what they bind.

    Attributes:
        nodes: every node; names' contexts and operators are left out.
        number: node -> its place in `nodes`.
        ends: where the nodes below the one at the same place end.
        parents: node -> the node it is part of.
        kinds: type of node -> the places of its nodes.
        names: owner -> name -> what it is given, in source order.
        attributes: class -> attribute of `self` -> what its methods give it.
    """

    nodes: list[ast.AST] = field(default_factory=list)
    number: dict[ast.AST, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    kinds: dict[type[ast.AST], list[int]] = field(default_factory=dict)
    names: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    attributes: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)

    def owner(self, node: ast.AST) -> ast.AST | None:
        """The function, class, comprehension or module that a node is in; the module's is None."""
        at = self.parents.get(node)
        while at is not None and at.__class__ not in _OWNERS:
            at = self.parents.get(at)
        return at


def index(tree: ast.Module, most: int) -> Index | None:
    """Number the nodes and collect what is bound; None where there are more than `most`."""
    found = Index()
    nodes, number, parents, kinds = found.nodes, found.number, found.parents, found.kinds
    above: list[int] = []
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, parent = stack.pop()
        place = len(nodes)
        if place >= most:
            return None
        nodes.append(node)
        above.append(parent)
        number[node] = place
        parents[node] = nodes[parent]
        kind = node.__class__
        if kind in kinds:
            kinds[kind].append(place)
        else:
            kinds[kind] = [place]
        fields = _FIELDS.get(kind)
        for name in _fields_of(kind) if fields is None else fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                # Names stand among nodes in `global x`, and None for the `**` of a dict.
                stack += [(one, place) for one in reversed(value) if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append((value, place))
    del parents[tree]
    found.ends.extend(_ends(above))
    _bind(found, tree)
    return found


#: Type of node -> its fields that may hold nodes, the last one first.
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
#: Fields that hold none.
_NO_NODES = frozenset(
    ("ctx", "op", "ops", "id", "attr", "arg", "kind", "type_comment", "level", "asname", "module")
)


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a type of node that may hold nodes; some, such as `name`, hold a string."""
    fields = () if kind is ast.Constant else kind._fields
    _FIELDS[kind] = tuple(one for one in reversed(fields) if one not in _NO_NODES)
    return _FIELDS[kind]


def _ends(above: list[int]) -> list[int]:
    """Where the nodes below each end, from the place of the node above each."""
    ends = list(range(1, len(above) + 1))
    for place in range(len(above) - 1, 0, -1):
        # A comparison of its own: `max` takes four times as long.
        if ends[place] > ends[parent := above[place]]:
            ends[parent] = ends[place]
    return ends


def _bind(found: Index, tree: ast.Module) -> None:
    # `global x` and `nonlocal x`: the name is another owner's.
    elsewhere: dict[tuple[ast.AST, str], ast.AST] = {}
    for place in found.kinds.get(ast.Global, []) + found.kinds.get(ast.Nonlocal, []):
        node = found.nodes[place]
        owner = found.owner(node) or tree
        outer = tree if isinstance(node, ast.Global) else found.owner(owner) or tree
        elsewhere |= {(owner, name): outer for name in getattr(node, "names", ())}
    for place in sorted(place for kind in _BINDERS for place in found.kinds.get(kind, ())):
        node = found.nodes[place]
        owner = found.owner(node) or tree
        if isinstance(node, ast.NamedExpr):
            while isinstance(owner, Comprehension):
                owner = found.owner(owner) or tree
        for target, binding in _BINDERS[type(node)](node):
            if binding.value is not None and binding.value not in found.parents:
                # A part that is not written in the source lies where it is unpacked.
                found.parents[binding.value] = node
            if isinstance(target, str):
                known = found.names.setdefault(elsewhere.get((owner, target), owner), {})
                known.setdefault(target, []).append(binding)
            elif (made_in := _class_of_self(found, target)) is not None:
                known = found.attributes.setdefault(made_in, {})
                known.setdefault(target.attr, []).append(binding)


def _class_of_self(found: Index, target: ast.Attribute) -> ast.AST | None:
    """The class of whose methods' `self` a target is an attribute."""
    if not (isinstance(target.value, ast.Name) and target.value.id == "self"):
        return None
    owner = found.owner(target)
    while owner is not None and not isinstance(owner, ast.ClassDef | ast.Module):
        owner = found.owner(owner)
    return owner if isinstance(owner, ast.ClassDef) else None


_Bound = Iterator[tuple[str | ast.Attribute, Binding]]


def _targets(target: ast.expr, value: ast.expr | None, node: ast.AST) -> _Bound:
    """What an assignment's target binds; tuples are taken apart."""
    if isinstance(target, ast.Name):
        yield target.id, Binding(node, value)
    elif isinstance(target, ast.Attribute):
        yield target, Binding(node, value)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, None, node)
    elif isinstance(target, ast.Tuple | ast.List):
        starred = any(isinstance(one, ast.Starred) for one in target.elts)
        for place, one in enumerate(target.elts):
            yield from _targets(one, None if starred else _part(value, place), node)


def _part(value: ast.expr | None, place: int) -> ast.expr | None:
    """An element of what is unpacked: as it is written, or as a subscript."""
    if value is None:
        return None
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts[place] if place < len(value.elts) else None
    where = {
        one: getattr(value, one) for one in ("lineno", "col_offset", "end_lineno", "end_col_offset")
    }
    return ast.Subscript(value, ast.Constant(place, **where), ast.Load(), **where)


def _assign(node: ast.Assign) -> _Bound:
    for target in node.targets:
        yield from _targets(target, node.value, node)


def _annotated(node: ast.AnnAssign) -> _Bound:
    if node.value is not None:
        yield from _targets(node.target, node.value, node)


def _changed(node: ast.AugAssign) -> _Bound:
    yield from _targets(node.target, None, node)


def _walrus(node: ast.NamedExpr) -> _Bound:
    yield from _targets(node.target, node.value, node)


def _loop(node: ast.For | ast.AsyncFor | ast.comprehension) -> _Bound:
    yield from _targets(node.target, None, node)


def _with(node: ast.withitem) -> _Bound:
    if node.optional_vars is not None:
        yield from _targets(node.optional_vars, None, node)


def _defined(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> _Bound:
    yield node.name, Binding(node)


def _parameter(node: ast.arg) -> _Bound:
    yield node.arg, Binding(node)


def _caught(node: ast.ExceptHandler) -> _Bound:
    if node.name is not None:
        yield node.name, Binding(node)


def _import(node: ast.Import) -> _Bound:
    for one in node.names:
        top = one.name.partition(".")[0]
        yield one.asname or top, Binding(node, imported=one.name if one.asname else top)


def _import_from(node: ast.ImportFrom) -> _Bound:
    for one in node.names:
        where = "." * node.level + (node.module or "")
        joined = where + one.name if where.endswith(".") else f"{where}.{one.name}"
        yield one.asname or one.name, Binding(node, imported=joined)


_BINDERS: Mapping[type[ast.AST], Callable[[Any], _Bound]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _changed,
    ast.NamedExpr: _walrus,
    ast.For: _loop,
    ast.AsyncFor: _loop,
    ast.comprehension: _loop,
    ast.withitem: _with,
    ast.FunctionDef: _defined,
    ast.AsyncFunctionDef: _defined,
    ast.ClassDef: _defined,
    ast.arg: _parameter,
    ast.ExceptHandler: _caught,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
}
