"""Jinja as chat templates need it, and no more of it than they need.

The environment is the one that chat templates are written for
(https://huggingface.co/docs/transformers/chat_templating): blocks are trimmed,
`break` and `continue` work, `tojson` escapes nothing, and `raise_exception`,
`strftime_now` and the `generation` block exist. Every loop, macro and call looks
at the clock, and what makes values of values asks a `Guard` first.

Imports Jinja2, which most runs do without.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from mlxdoctor.safety.template_guard import WITHOUT, Guard

#: What a template is rendered with under this name is called in every loop; it may raise.
TICK = "mlxdoctor_tick"
_JOIN, _CHECKED = "mlxdoctor_join", "mlxdoctor_checked"


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose loops and macros look at the clock, and whose values stay small."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, guard: Guard) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
            finalize=guard.checked,
            optimized=False,
        )
        self.guard = guard
        self.filters["tojson"] = _tojson
        for name, function in list(self.filters.items()):
            self.filters[name] = guard.filter(name, function)
        for name in WITHOUT:
            self.filters.pop(name, None)
        del self.globals["lipsum"]
        self.globals |= {
            _JOIN: self.joined,
            _CHECKED: guard.checked,
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
        """Ask the guard before an operator is applied."""
        self.guard.operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
        """Ask the guard before a function is called."""
        if function not in (self.guard.checked, self.joined):
            self.guard.call(function, arguments, named)
        return super().call(context, function, *arguments, **named)

    def joined(self, *values: Any) -> str:
        """What the operator `~` gives, where it is small enough."""
        self.guard.size(*values)
        return "".join(map(str, values))


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
