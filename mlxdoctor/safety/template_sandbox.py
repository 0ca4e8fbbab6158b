"""Jinja as chat templates need it, and no more of it than they need.

The environment is the one that chat templates are written for
(https://huggingface.co/docs/transformers/chat_templating): blocks are trimmed, `break` and
`continue` work, `tojson` escapes nothing, and `raise_exception`, `strftime_now` and the
`generation` block exist.

Jinja's sandbox keeps templates from Python's internals; it bounds `range` and nothing else. So
that no template fills the memory or the day, every loop and macro looks at the clock, and
everything that can make a value larger than its parts (operators, text methods, filters, and
lists that contain each other) is asked first how large it would become.

Imports Jinja2, which most runs do without.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import chain
from types import GeneratorType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

#: What a template is rendered with under this name is called in every loop; it may raise.
TICK = "mlxdoctor_tick"
_JOIN, _CHECKED = "mlxdoctor_join", "mlxdoctor_checked"

#: Filters that no chat template uses and whose time or result can't be foreseen.
WITHOUT = ("lipsum", "pprint", "random", "urlize", "wordwrap", "xmlattr", "forceescape")
#: Methods and filters whose numbers are widths or counts.
_SIZED = frozenset(
    [
        "batch",
        "center",
        "expandtabs",
        "indent",
        "ljust",
        "rjust",
        "round",
        "slice",
        "to_bytes",
        "tojson",
        "truncate",
        "zfill",
    ]
)
#: The largest width, indent or precision that a template may ask for.
MAX_WIDTH = 10_000
#: Bits of the largest whole number; the largest base and exponent of a power.
MAX_BITS, MAX_POWER = 4096, 1024
_WIDTH = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose loops and macros look at the clock, and whose values stay small.

    Args:
        characters: the most that a value may have, written out.
        refuse: raises the error for a template that does what the text says.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, characters: int, refuse: Callable[[str], NoReturn]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
            finalize=self.checked,
            optimized=False,
        )
        self.characters = characters
        self.refuse = refuse
        self.filters["tojson"] = _tojson
        for name in WITHOUT:
            self.filters.pop(name, None)
        for name, function in self.filters.items():
            self.filters[name] = self._bounded(name, function)
        del self.globals["lipsum"]
        self.globals |= {
            _JOIN: self.joined,
            _CHECKED: self.checked,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        looping: Any = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in tree.find_all(looping):
            call = nodes.Call(nodes.Name(TICK, "load"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        Growth().visit(tree)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """What an operator gives, where it is small enough."""
        numbers = [value for value in (left, right) if isinstance(value, int | float)]
        if operator == "**" and any(abs(value) > MAX_POWER for value in numbers):
            self.refuse("computes a huge power")
        if operator == "%" and isinstance(left, str):
            self._ask_format(left, right)
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, Collection) and isinstance(times, int):
                    self._at_most(len(many) * times)
        # Others at most double it.
        return self.checked(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        """Ask how much a method or function would give before it is called."""
        if function not in (self.checked, self.joined):
            arguments = tuple(self._gathered(value) for value in arguments)
            values = [*arguments, *named.values()]
            # The sandbox wraps a text's `format`.
            method = getattr(function, "__wrapped__", function)
            owner = getattr(method, "__self__", None)
            if isinstance(owner, str | bytes | int):
                self._ask(getattr(method, "__name__", ""), [owner, *values])
            else:
                self.size(*values)
        return super().call(context, function, *arguments, **named)

    def joined(self, *values: Any) -> str:
        """What the operator `~` gives, where it is small enough."""
        self.size(*values)
        return "".join(map(str, values))

    def checked(self, value: Any) -> Any:
        """The value itself, where it is small enough."""
        self.size(value)
        return value

    def size(self, *values: Any) -> int:
        """About how many characters values have once written out; refused where too many."""
        total = 0
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            total += 1
            if isinstance(value, str | bytes):
                total += len(value)
            elif isinstance(value, range):
                total += 7 * len(value)
            elif isinstance(value, int) and value.bit_length() > MAX_BITS:
                self.refuse("computes a huge number")
            elif isinstance(value, Mapping):
                waiting.extend(chain(value.keys(), value.values()))
            elif isinstance(value, Collection):
                waiting.extend(value)
            elif isinstance(value, Namespace):
                # It answers for none of its own attributes.
                waiting.extend(object.__getattribute__(value, "__dict__").values())
            if total + len(waiting) > self.characters:
                self.refuse(f"makes over {self.characters:,} characters")
        return total

    def _at_most(self, count: int) -> None:
        if count > self.characters:
            self.refuse(f"repeats over {self.characters:,} characters")

    def _ask(self, name: str, values: Sequence[Any]) -> None:
        """Refuse a method or filter that would make too much of what it is given.

        Args:
            name: its name.
            values: what it is a method of, or the filter is applied to, and the arguments.
        """
        first, *others = values
        size = self.size(*values)
        widths = [abs(value) for value in others if isinstance(value, int)]
        if name in _SIZED and max(widths, default=0) > MAX_WIDTH:
            self.refuse(f"asks for a width over {MAX_WIDTH:,}")
        if name in {"format", "format_map"}:
            self._ask_format(str(first), *others)
        elif name in {"expandtabs", "indent", "tojson"}:
            self._at_most(size * max([8, *widths]))
        elif name == "replace" and len(others) >= 2:
            old, new = (str(value) for value in others[:2])
            self._at_most(len(str(first)) + str(first).count(old) * len(new))
        elif name == "translate":
            self._at_most(len(first) * self.size(*others))
        elif name == "join":
            # As a method it has the separator first, as a filter the list.
            lengths = (len(value) for value in values[:2] if isinstance(value, Collection))
            self._at_most(math.prod(lengths))

    def _ask_format(self, layout: str, *values: Any) -> None:
        """Refuse a format whose widths, or whose fields times its values, are too large."""
        if _NESTED.search(layout):
            self.refuse("states a width by a value")
        widths = sum(min(int(width[:9]), 10**9) for width in _WIDTH.findall(layout))
        fields = layout.count("{") + layout.count("%")
        self._at_most(len(layout) + widths + fields * self.size(*values))

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, with what it is given and what it returns bounded."""
        # Jinja puts its context or environment first for filters with this mark.
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def bounded(*arguments: Any, **named: Any) -> Any:
            values = [self._gathered(value) for value in arguments[skipped:]]
            self._ask(name, [*values, *named.values()])
            return self.checked(function(*arguments[:skipped], *values, **named))

        return bounded

    def _gathered(self, values: Any) -> Any:
        """The values of a generator as a list, each looked at as it comes."""
        if not isinstance(values, GeneratorType):
            return values
        gathered, total = [], 0
        for value in values:
            total += self.size(value)
            self._at_most(total)
            gathered.append(value)
        return gathered


class Growth(NodeTransformer):
    """Puts a question about their size around what makes values of values."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        """`a ~ b`."""
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None)

    def visit_List(self, node: nodes.Literal) -> nodes.Node:  # noqa: N802
        """A list, a dict or a tuple."""
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_CHECKED, "load"), [node], [], None, None)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """In `for a, b in …` and `set a, b = …` it is a target, not a value."""
        return self.visit_List(node) if node.ctx == "load" else node


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the answer for other trainers; here it only has to parse."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

    def parse(self, parser: Any) -> Any:
        """The block's body, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(layout: str) -> str:
    # Templates ask for the user's own date.
    return datetime.now().astimezone().strftime(layout)
