"""A model's chat template: messages in, text out, in a sandbox with a time limit.

The environment is the one that chat templates are written for
(https://huggingface.co/docs/transformers/chat_templating): blocks are trimmed,
`break` and `continue` work, `tojson` escapes nothing, and `raise_exception`,
`strftime_now` and the `generation` block exist. Templates come with a model and
are not trusted: loops stop at a deadline and the output is bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mlxdoctor.safety.quoting import MAX_LINE, quoted
from mlxdoctor.safety.reading_limits import current
from mlxdoctor.safety.template_guard import WITHOUT, Guard

_TICK, _JOIN, _CHECKED = "mlxdoctor_tick", "mlxdoctor_join", "mlxdoctor_checked"
# A message's reasoning goes by several names; templates read the first, gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateFailure(Exception):  # noqa: N818 - what happened to one row, not a bug
    """The template does not compile, refuses the messages, or takes too long."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template.

    Attributes:
        text: its source.
        variables: the special tokens and switches it can use.
    """

    text: str
    variables: Mapping[str, Any]
    _compiled: Any = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str, variables: Mapping[str, Any]) -> ChatTemplate:
        """Compile a template.

        Raises:
            TemplateFailure: its syntax is wrong.
        """
        import jinja2

        try:
            compiled = _environment().from_string(text)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateFailure(f"the chat template does not compile ({error})") from None
        return cls(text, variables, compiled)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation.

        Raises:
            TemplateFailure: as the class says; the text is a clause for the user.
        """
        import jinja2

        if not messages:
            raise TemplateFailure("the conversation is empty")
        if not all(isinstance(message, Mapping) for message in messages):
            raise TemplateFailure("a message is not an object")
        if tools is not None and not all(isinstance(tool, Mapping) for tool in tools):
            raise TemplateFailure("a tool is not an object")
        limits = current()
        deadline = _deadline(limits.template_seconds)
        parts: list[str] = []
        characters = 0
        try:
            for part in self._compiled.generate(
                messages=[_normalised(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self.variables, _TICK: deadline},
            ):
                parts.append(part)
                characters += len(part)
                if characters > limits.template_characters:
                    raise TemplateFailure(
                        f"the text is over {limits.template_characters:,} characters "
                        "(limit template_characters)"
                    )
                deadline()
        except jinja2.TemplateError as error:
            raise TemplateFailure(
                f"the template refuses it ({quoted(str(error), MAX_LINE)})"
            ) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            reason = f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
            raise TemplateFailure(f"the template fails on it ({reason})") from None
        except (RecursionError, MemoryError) as error:
            raise TemplateFailure(f"the template ran out of {type(error).__name__}") from None
        return "".join(parts)


def _deadline(seconds: float) -> Callable[[], str]:
    end = time.monotonic() + seconds

    def tick() -> str:
        if time.monotonic() > end:
            raise TemplateFailure(
                f"the template did not finish in {seconds:g} seconds (limit template_seconds)"
            )
        return ""

    return tick


def _normalised(message: Mapping[str, Any]) -> dict[str, Any]:
    # APIs write `null` for an absent field; templates test for the key.
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in _REASONING if key in stated), None)
    if reasoning is None:
        return stated
    return {"thinking": reasoning, **stated, "reasoning_content": reasoning}


def _refuse(what: str) -> None:
    raise TemplateFailure(f"the template {what} (limit template_characters)")


def _environment() -> Any:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes
    from jinja2.runtime import Context
    from jinja2.visitor import NodeTransformer

    guard = Guard(current().template_characters, _refuse)

    class Growth(NodeTransformer):
        """Puts a question about their size around what makes values of values."""

        def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
            self.generic_visit(node)
            return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None)

        def visit_List(self, node: nodes.Literal) -> nodes.Node:  # noqa: N802
            self.generic_visit(node)
            return nodes.Call(nodes.Name(_CHECKED, "load"), [node], [], None, None)

        visit_Dict = visit_List  # noqa: N815

        def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
            # In `for a, b in …` and `set a, b = …` it is a target, not a value.
            return self.visit_List(node) if node.ctx == "load" else node

    class GenerationBlock(jinja2.ext.Extension):
        """`{% generation %}` marks the answer for other trainers; here it only has to parse."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """A sandbox whose loops and macros look at the clock."""

        intercepted_binops = frozenset({"*", "**", "+", "%"})

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            looping: Any = (nodes.For, nodes.Macro, nodes.CallBlock)
            for node in tree.find_all(looping):
                call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
                node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
            Growth().visit(tree)
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            guard.operator(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Context, function: Any, *arguments: Any, **named: Any) -> Any:
            if function not in (guard.checked, joined):
                guard.call(function, arguments, named)
            return super().call(context, function, *arguments, **named)

    def joined(*values: Any) -> str:
        guard.size(*values)
        return "".join(map(str, values))

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
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

    def strftime_now(layout: str) -> str:
        # Templates ask for the user's own date.
        return datetime.now().astimezone().strftime(layout)

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        finalize=guard.checked,
        optimized=False,
    )
    environment.filters["tojson"] = tojson
    for name, function in list(environment.filters.items()):
        environment.filters[name] = guard.filter(name, function)
    for name in WITHOUT:
        environment.filters.pop(name, None)
    environment.globals[_JOIN], environment.globals[_CHECKED] = joined, guard.checked
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals.pop("lipsum", None)
    return environment
