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

#: Seconds one rendering may take; a real one takes well under a millisecond.
MAX_SECONDS = 2.0
#: Characters one rendering may produce, and a repetition inside it.
MAX_CHARACTERS = 16 << 20

_TICK = "mlxdoctor_tick"
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
        deadline = _deadline(time.monotonic() + MAX_SECONDS)
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
                if characters > MAX_CHARACTERS:
                    raise TemplateFailure(f"the text is over {MAX_CHARACTERS:,} characters")
                deadline()
        except jinja2.TemplateError as error:
            raise TemplateFailure(f"the template refuses it ({error})") from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise TemplateFailure(f"the template fails on it ({reason})") from None
        except (RecursionError, MemoryError) as error:
            raise TemplateFailure(f"the template ran out of {type(error).__name__}") from None
        return "".join(parts)


def _deadline(end: float) -> Callable[[], str]:
    def tick() -> str:
        if time.monotonic() > end:
            raise TemplateFailure(f"the template did not finish in {MAX_SECONDS:g} seconds")
        return ""

    return tick


def _normalised(message: Mapping[str, Any]) -> dict[str, Any]:
    # APIs write `null` for an absent field; templates test for the key.
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in _REASONING if key in stated), None)
    if reasoning is None:
        return stated
    return {"thinking": reasoning, **stated, "reasoning_content": reasoning}


def _environment() -> Any:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes

    class GenerationBlock(jinja2.ext.Extension):
        """`{% generation %}` marks the answer for other trainers; here it only has to parse."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """A sandbox whose loops and macros look at the clock."""

        intercepted_binops = frozenset({"*", "**"})

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            tree = super()._parse(source, name, filename)
            looping: Any = (nodes.For, nodes.Macro, nodes.CallBlock)
            for node in tree.find_all(looping):
                call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
                node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(one) for one in (left, right) if hasattr(one, "__len__")]
            counts = [one for one in (left, right) if isinstance(one, int)]
            if operator == "**" and max(map(abs, counts), default=0) > 1024:
                raise TemplateFailure("the template computes a huge power")
            if sizes and counts and sizes[0] * counts[0] > MAX_CHARACTERS:
                raise TemplateFailure(f"the template repeats over {MAX_CHARACTERS:,} characters")
            return super().call_binop(context, operator, left, right)

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
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals.pop("lipsum", None)
    return environment
