"""The prompt and the answer of a row, whatever its format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxdoctor.evidence.dataset import Features, Row, RowFormat

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """What is asked and what is answered.

    Attributes:
        prompt: everything before the last answer or the completion; empty for plain text.
        answer: that answer.
    """

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        """Both, for a search."""
        return f"{self.prompt}\n{self.answer}"


def messages_of(row: Row, row_format: RowFormat, features: Features) -> list[Message]:
    """The conversation that mlx-lm makes of a row of this format.

    Raises:
        KeyError: the row lacks the key that its format needs.
        TypeError: it holds no conversation.
    """
    if row_format == "completions":
        return [
            {"role": "user", "content": row[features.prompt]},
            {"role": "assistant", "content": row[features.completion]},
        ]
    messages = row[features.chat] if row_format == "chat" else None
    if not isinstance(messages, list) or not messages:
        raise TypeError("its messages are not a list with something in it")
    return messages


def pair_of(row: Row, row_format: RowFormat, features: Features) -> Pair:
    """The prompt and the answer of a row, as plain texts.

    Of a conversation the answer is the assistant's last message, and the prompt all that was said
    before. A row that has no such parts is all answer, as it stands.

    Args:
        row: the row.
        row_format: how the split is read.
        features: the keys under which rows hold their parts.
    """
    if row_format == "completions":
        if features.prompt in row and features.completion in row:
            return Pair(_text(row[features.prompt]), _text(row[features.completion]))
        return Pair("", _text(row))
    if row_format != "chat":
        key = features.text if row_format == "text" else row_format
        return Pair("", _text(row.get(key, row)))
    messages = row.get(features.chat)
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        return Pair("", _text(row))
    places = [place for place, one in enumerate(messages) if one.get("role") == "assistant"]
    if not places:
        return Pair("", _text(row))
    contents = [_content(one) for one in messages[: places[-1] + 1]]
    return Pair("\n".join(contents[:-1]), contents[-1])


def question_and_answer(
    row: Row, row_format: RowFormat, features: Features
) -> tuple[str, str] | None:
    """What is asked and answered in a row of one turn; None for any other row."""
    try:
        messages = messages_of(row, row_format, features)
    except (KeyError, TypeError):
        return None
    turns = [one for one in messages if isinstance(one, Mapping) and one.get("role") != "system"]
    if [one.get("role") for one in turns] != ["user", "assistant"]:
        return None
    asked, answered = (one.get("content") for one in turns)
    return (asked, answered) if isinstance(asked, str) and isinstance(answered, str) else None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _content(message: Message) -> str:
    """What is said in a message; what is not text, such as a call of a tool, as JSON."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return _text(message.get("tool_calls")) if message.get("tool_calls") else ""
