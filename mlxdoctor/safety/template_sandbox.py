"""Jinja as chat templates need it: its own sandbox, and what that leaves open closed.

The environment is the one that chat templates are written for
(https://huggingface.co/docs/transformers/chat_templating): blocks are trimmed, `break` and
`continue` work, `tojson` escapes nothing, and `raise_exception`, `strftime_now` and the
`generation` block exist.

Jinja's sandbox keeps templates from Python's internals and bounds `range`. Time and memory are
limited from outside (`limits`, and the watching parent, see `watched`); huge whole numbers are
refused here. Imports Jinja2, which most runs do without.
"""

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

#: Bits of the largest whole number that a template may compute: templates count messages. A power
#: of small numbers fills the memory where the system limits none.
MAX_BITS = 4096


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The filter as transformers has it, arguments by place included."""
    options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with the functions of chat templates and no huge numbers."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
            # Else all that is constant would be computed while a template is compiled.
            optimized=False,
        )
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            # Templates ask for the user's own date.
            "strftime_now": lambda layout: datetime.now().astimezone().strftime(layout),
        }

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The product or the power.

        Raises:
            MemoryError: it has over `MAX_BITS` bits.
        """
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits * abs(right) if operator == "**" else bits + right.bit_length()
            if bits > MAX_BITS:
                raise MemoryError(f"computes a number of over {MAX_BITS:,} bits")
        return super().call_binop(context, operator, left, right)


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the answer for other trainers; here it only has to parse."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
