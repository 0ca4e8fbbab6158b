"""A Python file as the rules see it: its syntax tree, what its names mean, and who calls what.

Nothing is followed into other files, and nothing is imported or run.
"""

import ast
import sys
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeGuard, TypeVar, overload

from mlxdoctor.lint.bindings import Binding, Function, Index, Owner, index_of
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

__all__ = ["Function", "SourceFile", "constant", "is_model", "keyword", "last_name", "parameters"]

#: Names are followed through this many others.
MOST_STEPS = 8
#: A name that is given more often than this is taken for one that is not bound.
MOST_GIVEN = 100
#: Functions that return the function they are given first.
WRAPPERS = ("mlx.core.compile", "mlx.core.checkpoint", "mlx.nn.checkpoint")
OPTIMIZERS = tuple(
    f"mlx.optimizers.{name}"
    for name in ("Adam", "AdamW", "SGD", "Adafactor", "Muon", "Lion", "RMSprop", "Adagrad")
)

_A = TypeVar("_A", bound=ast.AST)
_B = TypeVar("_B", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One parsed file; `path` is as the user named it."""

    path: Path
    text: str
    tree: ast.Module
    index: Index
    #: Names that lead to each other are followed once, so that they come to an end.
    _values_known: dict[tuple[ast.expr, int], list[ast.expr]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, path: Path) -> "SourceFile":
        """Parse source text.

        Raises:
            InputError: this Python cannot parse it, or it has more nodes than `source_nodes`.
        """
        try:
            with warnings.catch_warnings():
                # What Python says of the style of a literal is for whoever runs it.
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problem = "is not valid Python {}.{}".format(*sys.version_info)
            if isinstance(error, SyntaxError):
                problem += f": {error.msg} (line {error.lineno})"
            raise InputError(path, problem, "name Python files") from None
        index = index_of(tree, current().source_nodes)
        if index is None:
            raise exceeded(path, "has more code than a trainer", "source_nodes")
        return cls(path, text, tree, index)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without line breaks."""
        return tuple(self.text.splitlines())

    @overload
    def of(self, kind: type[_A], /, *, within: ast.AST | None = None) -> Iterator[_A]: ...
    @overload
    def of(
        self, kind: type[_A], other: type[_B], /, *, within: ast.AST | None = None
    ) -> Iterator[_A | _B]: ...
    def of(self, *kinds: type[ast.AST], within: ast.AST | None = None) -> Iterator[ast.AST]:
        """The nodes of these kinds in source order, `within` itself included."""
        first = self.index.number.get(within or self.tree)
        if first is None:
            # A part that is not written in the source has no nodes of its own.
            return
        end = self.index.ends[first]
        places = list[int]()
        for kind in kinds:
            of_kind = self.index.kinds.get(kind, [])
            places += of_kind[bisect_left(of_kind, first) : bisect_left(of_kind, end)]
        for place in sorted(places):
            yield self.index.nodes[place]

    def names_in(self, node: ast.AST) -> set[str]:
        """Every plain name that is read or written below a node."""
        return {name.id for name in self.of(ast.Name, within=node)}

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that a node is part of."""
        return self.index.parents.get(node)

    def is_within(self, node: ast.AST, above: ast.AST) -> bool:
        """Whether a node is below another, or is it."""
        place, first = self.index.number.get(node), self.index.number.get(above)
        if place is None or first is None:
            return False
        return first <= place < self.index.ends[first]

    def enclosing(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The nearest node of these kinds that a node is in, within its function."""
        above = self.index.above(node, *kinds, Function)
        return above if isinstance(above, kinds) else None

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node is in, or the module."""
        return self.index.above(node, Function) or self.tree

    @cached_property
    def imports(self) -> Mapping[str, str]:
        """Local name -> what it stands for, such as `mx` -> `mlx.core`."""
        return {
            name: binding.imported
            for names in self.index.names.values()
            for name, bindings in names.items()
            for binding in bindings
            if binding.imported
        }

    def given(self, name: ast.expr) -> list[Binding]:
        """What a name, or an attribute of `self`, may have been given last where it is used.

        Nothing where it is not bound in this file, or is something else.
        """
        if isinstance(name, ast.Attribute) and ast.unparse(name.value) == "self":
            made = self.index.above(name, ast.ClassDef)
            return [] if made is None else self.index.attributes.get(made, {}).get(name.attr, [])
        if not isinstance(name, ast.Name):
            return []
        owner = self.index.above(name, Owner)
        inner = self.index.above(name, Function | ast.ClassDef | ast.Module)
        near = True
        while owner is not None:
            bindings = self.index.names.get(owner, {}).get(name.id)
            # The names of a class are not seen from its methods.
            if bindings and (near or not isinstance(owner, ast.ClassDef)):
                if len(bindings) > MOST_GIVEN:
                    return []
                return self._reaching(name, bindings) if near else bindings
            near = near and owner is not inner
            owner = self.index.above(owner, Owner)
        return []

    def _reaching(self, use: ast.Name, bindings: list[Binding]) -> list[Binding]:
        """The bindings that may be the last before a use, as if every loop ran once."""
        place = self.index.number.get(use)
        if place is None or len(bindings) == 1:
            return bindings
        reaching: list[Binding] = []
        for binding in reversed(bindings):
            first = self.index.number[binding.node]
            # `x = x + 1`: what is on the right is still the old one.
            bound = first if binding.value is None else self.index.ends[first] - 1
            if bound < place:
                reaching.append(binding)
                if self.is_before(binding.node, use):
                    break
        return reaching or bindings

    def is_before(self, node: ast.AST, use: ast.AST) -> bool:
        """Whether a node comes first, and nothing below it is reached without passing it."""
        if self.index.number[node] > self.index.number[use]:
            return False
        block, above = node, self.parent(node)
        while isinstance(above, ast.With | ast.Try) or not isinstance(block, ast.stmt):
            if above is None:
                return True
            block, above = above, self.parent(above)
        if above is None or isinstance(above, Function | ast.Module):
            return True
        branches = [getattr(above, field, None) for field in ("body", "orelse", "cases")]
        for branch in branches:
            if isinstance(branch, list) and block in branch:
                return any(self.is_within(use, statement) for statement in branch)
        return False

    def values(self, node: ast.expr, steps: int = MOST_STEPS) -> list[ast.expr]:
        """The expressions that one may stand for; itself where it cannot be followed further.

        Names, attributes of `self`, both sides of `a if c else b`, and elements of tuples that are
        unpacked are followed; a parameter or the variable of a loop stands for itself.
        """
        if (node, steps) not in self._values_known:
            self._values_known[node, steps] = self._follow(node, steps)
        return self._values_known[node, steps]

    def _follow(self, node: ast.expr, steps: int) -> list[ast.expr]:
        if not steps:
            return [node]
        given: list[ast.expr | None] = []
        match node:
            case ast.IfExp():
                given = [node.body, node.orelse]
            case ast.Name() | ast.Attribute():
                given = [binding.value for binding in self.given(node)]
            case ast.Subscript(slice=ast.Constant(value=int() as place)):
                for held in self.values(node.value, steps - 1):
                    elements = held.elts if isinstance(held, ast.Tuple | ast.List) else []
                    if not -len(elements) <= place < len(elements):
                        return [node]
                    given.append(elements[place])
        followed = dict[ast.expr, None]()
        for value in given:
            followed |= dict.fromkeys([node] if value is None else self.values(value, steps - 1))
        return list(followed) or [node]

    def values_here(self, name: ast.Name) -> list[ast.expr]:
        """What a name may have been given in its own function; nothing if it was handed in."""
        scope = self.scope(name)
        return [
            binding.value
            for binding in self.given(name)
            if binding.value is not None and self.scope(binding.node) is scope
        ]

    @cached_property
    def names_of(self) -> Mapping[ast.expr, list[ast.expr]]:
        """Expression -> the names and attributes that may stand for it."""
        names: dict[ast.expr, list[ast.expr]] = {}
        for name in self.of(ast.Name, ast.Attribute):
            if isinstance(name.ctx, ast.Load):
                for value in self.values(name):
                    names.setdefault(value, []).append(name)
        return names

    def parts(
        self, node: ast.expr, stop: Callable[[ast.AST], bool] = lambda _: False
    ) -> Iterator[ast.expr]:
        """Every expression that a value is computed from in its function, itself first.

        Nodes that `stop` is true of are left out, and what is below them.
        """
        waiting, seen = [node], set[ast.AST]()
        while waiting:
            part = waiting.pop()
            if part in seen or stop(part):
                continue
            seen.add(part)
            yield part
            if isinstance(part, ast.Name):
                waiting += self.values_here(part)
            children = (
                child.value if isinstance(child, ast.keyword) else child
                for child in ast.iter_child_nodes(part)
            )
            waiting += [child for child in children if isinstance(child, ast.expr)]

    def name_of(self, node: ast.AST) -> str:
        """The dotted name of an expression, imports resolved; else empty.

        A name that stands for nothing imported is itself: `print`, `model.layers`.
        """
        given = self.given(node) if isinstance(node, ast.Name | ast.Attribute) else []
        # The first import: `try: import ... except ImportError: mx = None`.
        full = next((binding.imported for binding in given if binding.imported), "")
        match node:
            case ast.Name(id=name):
                return full or name
            case ast.Attribute(value=held, attr=attr):
                before = "" if full else self.name_of(held)
                return full or (f"{before}.{attr}" if before else "")
        return ""

    def is_named(self, node: ast.AST, *names: str) -> bool:
        """Whether an expression is one of these names, wherever it is re-exported from."""
        return canonical(self.name_of(node)) in map(canonical, names)

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Calls of these: `mlx.core.eval`, `.freeze` for a method, `*.train` from anywhere."""
        calls = {call for name in names for call in self._calls_by_name.get(canonical(name), ())}
        for call in sorted(calls, key=self.index.number.__getitem__):
            if within is None or self.is_within(call, within):
                yield call

    @cached_property
    def _calls_by_name(self) -> Mapping[str, list[ast.Call]]:
        """Each name by which calls are asked for -> the calls."""
        calls: dict[str, list[ast.Call]] = {}
        for call in self.of(ast.Call):
            for name in self._names_of_call(call):
                calls.setdefault(name, []).append(call)
        return calls

    def _names_of_call(self, call: ast.Call) -> set[str]:
        full = canonical(self.name_of(call.func))
        method = {f".{call.func.attr}"} if isinstance(call.func, ast.Attribute) else set()
        return {full, "*." + full.rpartition(".")[2], *method}

    def is_call(self, node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
        """Whether a node is a call of one of these names; see `calls`."""
        return isinstance(node, ast.Call) and not self._names_of_call(node).isdisjoint(
            map(canonical, names)
        )

    def function(self, node: ast.expr) -> Function | None:
        """The function of this file that an expression is: by a name, as a method, as a lambda.

        `mx.compile(f)` is f. Of two functions with one name, which is meant cannot be told.
        """
        functions = dict[Function, None]()
        for value in self.values(node):
            match value:
                case ast.Lambda():
                    functions[value] = None
                case ast.Call() if value.args and self.is_named(value.func, *WRAPPERS):
                    if (wrapped := self.function(value.args[0])) is not None:
                        functions[wrapped] = None
                case ast.Name() | ast.Attribute():
                    given = self.given(value) or self._methods(value)
                    made = (binding.node for binding in given)
                    functions |= {each: None for each in made if isinstance(each, Function)}
        return next(iter(functions)) if len(functions) == 1 else None

    def _methods(self, node: ast.expr) -> list[Binding]:
        """The method that an attribute is; of anything but `self` the one of that name."""
        held = node.value if isinstance(node, ast.Attribute) else None
        if not isinstance(held, ast.Name) or held.id in self.imports:
            return []
        own = held.id in {"self", "cls"}
        classes = [self.index.above(node, ast.ClassDef)] if own else list(self.of(ast.ClassDef))
        methods = [self.index.names.get(m, {}).get(last_name(node), [])[-1:] for m in classes if m]
        methods = [method for method in methods if method]
        return methods[0] if len(methods) == 1 else []

    def returned(self, function: Function) -> list[ast.expr]:
        """What a function returns, functions in it left out."""
        if isinstance(function, ast.Lambda):
            return [function.body]
        return [
            node.value
            for node in self.of(ast.Return, within=function)
            if node.value is not None and self.scope(node) is function
        ]

    def differentiated(self) -> Iterator[tuple[ast.Call, Function, str]]:
        """Calls of `mx.value_and_grad` and `mx.grad`: the loss, and its parameter they go by."""
        for call in self.calls("mlx.core.value_and_grad", "mlx.core.grad"):
            loss = call.args[0] if call.args else keyword(call, "fun")
            function = self.function(loss) if loss is not None else None
            number = keyword(call, "argnums")
            place = 0 if number is None else constant(number)
            if function is None or not isinstance(place, int):
                continue
            names = parameters(function)
            # A bound method has lost its `self`.
            if isinstance(self.parent(function), ast.ClassDef) and names[:1] in (["self"], ["cls"]):
                del names[0]
            if 0 <= place < len(names):
                yield call, function, names[place]

    def uses_of(self, made: ast.Call) -> Iterator[ast.Call]:
        """Where a function that a call returns is called: at once, or by the name it was given."""
        for name in (made, *self.names_of.get(made, ())):
            parent = self.parent(name)
            if isinstance(parent, ast.Call) and parent.func is name:
                yield parent

    def are_parameters(self, node: ast.expr) -> bool:
        """Whether an expression is what `parameters()` of a module returns, or a name for it."""
        return all(
            self.is_call(value, ".parameters", ".trainable_parameters")
            for value in self.values(node)
        )

    def updates(self, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """`optimizer.update(model, gradients)`, by the name of the optimizer."""
        for call in self.calls(".update", within=within):
            is_method = isinstance(call.func, ast.Attribute)
            if is_method and len(call.args) == 2 and "opt" in ast.unparse(call.func).lower():
                yield call


def canonical(name: str) -> str:
    """One name for a thing, wherever it is imported from: `mlx_lm.load` for `mlx_lm.utils.load`.

    What is defined further down is offered further up, and no two of one part are called the same.
    """
    module, _, last = name.rpartition(".")
    parts = module.split(".")
    return ".".join([*parts[: 2 if parts[0] == "mlx" else 1], last]) if module else name


def parameters(function: Function) -> list[str]:
    """The names of a function's positional parameters."""
    return [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((given.value for given in call.keywords if given.arg == name), None)


def constant(node: ast.AST | None) -> object:
    """The value of a literal, negative numbers included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None


def last_name(node: ast.AST) -> str:
    """The last part of a name as it is written; of a call, that of what is called."""
    match node:
        case ast.Call():
            return last_name(node.func)
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
    return ""


def is_model(node: ast.AST) -> bool:
    """Whether an expression is called a model: `model`, `self.model`, `policy_model`."""
    name = "" if isinstance(node, ast.Call) else last_name(node)
    return name == "model" or name.endswith("_model")
