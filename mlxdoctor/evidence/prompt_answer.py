"""A row as prompt and answer, whatever its format, so that rows can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxdoctor.evidence.dataset import Features, Row, RowFormat


@dataclass(frozen=True)
class Pair:
    """What is asked and what is answered.

    Attributes:
        prompt: everything before the last message or the completion; empty for plain text.
        answer: the rest.
    """

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        """Both, for a search."""
        return f"{self.prompt}\n{self.answer}"


def pair_of(row: Row, row_format: RowFormat, features: Features) -> Pair:
    """The prompt and the answer of a row, as exact texts.

    Args:
        row: the row.
        row_format: how the split is read.
        features: the keys under which rows hold their parts.
    """
    if row_format == "completions":
        return Pair(_text(row.get(features.prompt)), _text(row.get(features.completion)))
    if row_format == "chat":
        messages = row.get(features.chat)
        if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
            return Pair(_text(messages[:-1]), _text(messages[-1].get("content")))
        return Pair("", _text(messages))
    return Pair("", _text(row.get(features.text if row_format == "text" else row_format, row)))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
