"""A model's chat template: messages in, text out, in a sandbox with a time limit.

Templates come with a model and are not trusted: `safety.template_sandbox` runs them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from mlxdoctor.safety.quoting import MAX_LINE, quoted
from mlxdoctor.safety.reading_limits import ReadingLimits, current
from mlxdoctor.safety.stages import Kind, Stage, StageStopped
from mlxdoctor.safety.time_limit import TimeLimitExceeded, time_limit

#: A rendering that takes longer is a slow one; of those, so many times the limit in all.
QUICK_SECONDS, SLOW_RENDERINGS = 0.1, 3
#: A rendering that looks at no clock is ended so much later than one that does (seconds).
LATER = 0.5
_STAGE = Stage("the chat template", Kind.LIBRARY, limit="template_seconds")
# A message's reasoning goes by several names; templates read the first, gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class TemplateFailure(Exception):  # noqa: N818 - what happened to one row, not a bug
    """The template does not compile, refuses the messages, or takes too long."""


class TemplateTooMuch(TemplateFailure):
    """It would take more time or memory than a template may: nobody else should run it either."""


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
    _slow: list[float] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def compile(cls, text: str, variables: Mapping[str, Any]) -> ChatTemplate:
        """Compile a template.

        Raises:
            TemplateFailure: its syntax is wrong.
        """
        import jinja2

        from mlxdoctor.safety.template_sandbox import Sandbox

        def refuse(what: str) -> NoReturn:
            raise TemplateTooMuch(f"the template {what} (limit template_characters)")

        try:
            with _STAGE, warnings.catch_warnings():
                # Python may have something to say of what Jinja makes of it.
                warnings.simplefilter("ignore")
                compiled = Sandbox(current().template_characters, refuse).from_string(text)
        except StageStopped as stopped:
            raise TemplateTooMuch(str(stopped)) from None
        # Python refuses some of what Jinja makes of it: deep nesting, digits of other scripts.
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError) as error:
            problem = quoted(str(error), MAX_LINE)
            raise TemplateFailure(f"the chat template does not compile ({problem})") from None
        except MemoryError as error:
            raise TemplateTooMuch(_ran_out(error)) from None
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
        if not messages:
            raise TemplateFailure("the conversation is empty")
        if not all(isinstance(message, Mapping) for message in messages):
            raise TemplateFailure("a message is not an object")
        if tools is not None and not all(isinstance(tool, Mapping) for tool in tools):
            raise TemplateFailure("a tool is not an object")
        limits = current()
        # What one rendering may take, thousands of rows may not: slow ones share a budget.
        seconds_left = SLOW_RENDERINGS * limits.template_seconds - sum(self._slow)
        if seconds_left <= 0:
            raise TemplateTooMuch(
                f"the template took over {sum(self._slow):.0f} seconds for {len(self._slow)} "
                "conversations, and is not rendered any more (limit template_seconds)"
            )
        begun = time.monotonic()
        try:
            with _STAGE, time_limit(limits.template_seconds + LATER):
                return self._rendered(messages, tools, add_generation_prompt, limits)
        except TimeLimitExceeded:
            raise TemplateTooMuch(_late(limits.template_seconds)) from None
        finally:
            if (took := time.monotonic() - begun) > QUICK_SECONDS:
                self._slow.append(took)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        limits: ReadingLimits,
    ) -> str:
        import jinja2

        from mlxdoctor.safety.template_sandbox import TICK

        deadline = _deadline(limits.template_seconds)
        parts: list[str] = []
        characters = 0
        try:
            for part in self._compiled.generate(
                messages=[_normalised(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self.variables, TICK: deadline},
            ):
                parts.append(part)
                characters += len(part)
                if characters > limits.template_characters:
                    raise TemplateTooMuch(
                        f"the text is over {limits.template_characters:,} characters "
                        "(limit template_characters)"
                    )
                deadline()
        except jinja2.TemplateError as error:
            raise TemplateFailure(
                f"the template refuses it ({quoted(str(error), MAX_LINE)})"
            ) from None
        # Jinja writes 1e999 as the name inf.
        except (
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            AttributeError,
            NameError,
        ) as error:
            reason = f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
            raise TemplateFailure(f"the template fails on it ({reason})") from None
        except (RecursionError, MemoryError) as error:
            raise TemplateTooMuch(_ran_out(error)) from None
        return "".join(parts)


def _deadline(seconds: float) -> Callable[[], str]:
    end = time.monotonic() + seconds

    def tick() -> str:
        if time.monotonic() > end:
            raise TemplateTooMuch(_late(seconds))
        return ""

    return tick


def _ran_out(error: BaseException) -> str:
    return f"the template ran out of {'memory' if isinstance(error, MemoryError) else 'stack'}"


def _late(seconds: float) -> str:
    return f"the template did not finish in {seconds:g} seconds (limit template_seconds)"


def _normalised(message: Mapping[str, Any]) -> dict[str, Any]:
    # APIs write `null` for an absent field; templates test for the key.
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in _REASONING if key in stated), None)
    if reasoning is None:
        return stated
    return {"thinking": reasoning, **stated, "reasoning_content": reasoning}
