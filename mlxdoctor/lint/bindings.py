"""The nodes of a syntax tree in source order, and what its names are given where.

One walk without recursion numbers the nodes; functions, classes, comprehensions and the module have
names of their own. What a name means where it is used is asked of `source.SourceFile`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
#: What has names of its own.
Owner: TypeAlias = Function | Comprehension | ast.ClassDef | ast.Module
#: `Load` or `Add` is one node for the whole file.
_SHARED = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)


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

    def above(self, node: ast.AST, *kinds: type | UnionType) -> ast.AST | None:
        """The nearest node of these kinds that a node is in; None where there is none."""
        part = self.parents.get(node)
        while part is not None and not isinstance(part, kinds):
            part = self.parents.get(part)
        return part


def index_of(tree: ast.Module, most: int) -> Index | None:
    """Number the nodes and collect what is bound; None where there are more than `most`."""
    index = Index()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if len(index.nodes) >= most:
            return None
        index.number[node] = len(index.nodes)
        index.kinds.setdefault(type(node), []).append(len(index.nodes))
        index.nodes.append(node)
        children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _SHARED)]
        index.parents.update((child, node) for child in children)
        waiting += reversed(children)
    index.ends.extend(range(1, len(index.nodes) + 1))
    for place in range(len(index.nodes) - 1, 0, -1):
        parent = index.number[index.parents[index.nodes[place]]]
        index.ends[parent] = max(index.ends[parent], index.ends[place])
    _bind(index, tree)
    return index


def _bind(index: Index, tree: ast.Module) -> None:
    """Collect what every name and every attribute of `self` is given."""
    for node in index.nodes:
        bound = list(_bound(node))
        if not bound:
            continue
        owner = index.above(node, Owner) or tree
        for target, binding in bound:
            if binding.value is not None and binding.value not in index.parents:
                # A part that is not written in the source lies where it is unpacked.
                index.parents[binding.value] = node
            if isinstance(target, str):
                names_of_owner = index.names.setdefault(owner, {})
                names_of_owner.setdefault(target, []).append(binding)
            elif isinstance(target.value, ast.Name) and target.value.id == "self":
                made = index.above(target, ast.ClassDef)
                if made is not None:
                    attributes = index.attributes.setdefault(made, {})
                    attributes.setdefault(target.attr, []).append(binding)


_Bound: TypeAlias = Iterator[tuple[str | ast.Attribute, Binding]]


def _bound(node: ast.AST) -> _Bound:
    """The names and attributes that a node gives a meaning, and which."""
    match node:
        case ast.Assign():
            for target in node.targets:
                yield from _targets(target, node.value, node)
        case ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
            yield from _targets(node.target, value, node)
        case ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
            yield from _targets(node.target, None, node)
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from _targets(target, None, node)
        case ast.ExceptHandler(name=str() as name) | ast.arg(arg=name):
            yield name, Binding(node)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name, Binding(node)
        case ast.Import():
            for alias in node.names:
                package = alias.name.partition(".")[0]
                imported = alias.name if alias.asname else package
                yield alias.asname or package, Binding(node, imported=imported)
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                dot = "" if module.endswith(".") else "."
                imported = module + dot + alias.name
                yield alias.asname or alias.name, Binding(node, imported=imported)


def _targets(target: ast.expr, value: ast.expr | None, node: ast.AST) -> _Bound:
    """What the target of an assignment binds; tuples are taken apart."""
    if isinstance(target, ast.Name):
        yield target.id, Binding(node, value)
    elif isinstance(target, ast.Attribute):
        yield target, Binding(node, value)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, None, node)
    elif isinstance(target, ast.Tuple | ast.List):
        starred = any(isinstance(element, ast.Starred) for element in target.elts)
        for place, element in enumerate(target.elts):
            yield from _targets(element, None if starred else _part(value, place), node)


def _part(value: ast.expr | None, place: int) -> ast.expr | None:
    """An element of what is unpacked: as it is written, or as a subscript."""
    if value is None:
        return None
    if isinstance(value, ast.Tuple | ast.List):
        return value.elts[place] if place < len(value.elts) else None
    number = ast.copy_location(ast.Constant(place), value)
    return ast.copy_location(ast.Subscript(value, number, ast.Load()), value)
