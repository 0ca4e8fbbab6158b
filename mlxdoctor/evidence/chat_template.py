"""A model's chat template: messages in, text out, in a sandbox with limits of time and memory.

Templates come with a model and are not trusted: `safety.template_sandbox` runs them.
"""

import gc
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mlxdoctor.safety.limits import TimeLimitExceeded, memory_limit, time_limit
from mlxdoctor.safety.quoting import MAX_LINE, quoted
from mlxdoctor.safety.reading_limits import ReadingLimits, current
from mlxdoctor.safety.stages import Kind, Stage, StageStopped

T = TypeVar("T")
#: A conversation; or the tools that it may call.
Messages = Sequence[Mapping[str, Any]]

#: A rendering that takes longer is a slow one; of those, so many times the limit in all.
QUICK_SECONDS, SLOW_RENDERINGS = 0.1, 3
#: Bytes that a rendering may take for each character that its text may have: a character has up
#: to four, in the values that the text is made of too.
BYTES_A_CHARACTER = 64
_STAGE = Stage("the chat template", Kind.LIBRARY, limit="template_seconds")
# A message's reasoning goes by several names; templates read the first, gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
#: What a template raises that is at fault.
_FAULTS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, NameError)


class TemplateFailure(Exception):  # noqa: N818 - what happened to one row, not a bug
    """The template does not compile, refuses the messages, or takes too long."""


class TemplateTooMuch(TemplateFailure):
    """It would take more time or memory than a template may: nobody else should run it either."""


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled chat template, or why it does not compile: rows of text need none.

    Attributes:
        variables: the special tokens and switches it can use.
    """

    variables: Mapping[str, Any]
    _compiled: Any = field(repr=False, compare=False)
    _slow: list[float] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def compile(cls, text: str, variables: Mapping[str, Any]) -> "ChatTemplate":
        """Compile a template; what is wrong with it is raised where it is rendered."""
        import jinja2

        from mlxdoctor.safety.template_sandbox import Sandbox

        compiled: Any
        try:
            # Jinja computes constants that are printed now, even where it optimizes nothing.
            compiled = _limited(current(), lambda: Sandbox().from_string(text))
        except TemplateTooMuch as failure:
            compiled = failure
        # Python refuses some of what Jinja makes of it: deep nesting, digits of other scripts.
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError) as error:
            problem = quoted(str(error), MAX_LINE)
            compiled = TemplateFailure(f"the chat template does not compile ({problem})")
        return cls(variables, compiled)

    def render(
        self, messages: Messages, tools: Messages | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The text of a conversation.

        Raises:
            TemplateFailure: as the class says; the text is a clause for the user.
        """
        if isinstance(self._compiled, TemplateFailure):
            raise self._compiled.with_traceback(None)
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
        given = {
            "messages": [_normalised(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        begun = time.monotonic()
        try:
            return _limited(limits, lambda: self._rendered(given, limits.template_characters))
        finally:
            if (took := time.monotonic() - begun) > QUICK_SECONDS:
                self._slow.append(took)

    def _rendered(self, given: Mapping[str, Any], most: int) -> str:
        import jinja2

        parts: list[str] = []
        characters = 0
        try:
            for part in self._compiled.generate(**given, **self.variables):
                parts.append(part)
                characters += len(part)
                if characters > most:
                    limit = "limit template_characters"
                    raise TemplateTooMuch(f"the text is over {most:,} characters ({limit})")
        except jinja2.TemplateError as error:
            raise TemplateFailure(
                f"the template refuses it ({quoted(str(error), MAX_LINE)})"
            ) from None
        # Jinja writes 1e999 as the name inf.
        except _FAULTS as error:
            reason = f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
            raise TemplateFailure(f"the template fails on it ({reason})") from None
        except RecursionError:
            raise TemplateTooMuch("the template ran out of stack") from None
        return "".join(parts)


def _limited(limits: ReadingLimits, work: Callable[[], T]) -> T:
    """What a template's work gives; TemplateTooMuch over its limits of time and memory."""
    memory = memory_limit(BYTES_A_CHARACTER * limits.template_characters)
    try:
        with _STAGE, time_limit(limits.template_seconds), memory, warnings.catch_warnings():
            # Python may have something to say of the code that Jinja makes.
            warnings.simplefilter("ignore")
            return work()
    except StageStopped as stopped:
        problem = str(stopped)
    except TimeLimitExceeded:
        seconds = limits.template_seconds
        problem = f"the template did not finish in {seconds:g} seconds (limit template_seconds)"
    except MemoryError as error:
        problem = f"the template {str(error) or 'ran out of memory (limit template_characters)'}"
    # The error is over here, and so is what its frames kept of what the template made.
    gc.collect()
    raise TemplateTooMuch(problem)


def _normalised(message: Mapping[str, Any]) -> dict[str, Any]:
    # APIs write `null` for an absent field; templates test for the key.
    stated = {key: value for key, value in message.items() if value is not None}
    reasoning = next((stated[key] for key in _REASONING if key in stated), None)
    if reasoning is None:
        return stated
    return {"thinking": reasoning, **stated, "reasoning_content": reasoning}
