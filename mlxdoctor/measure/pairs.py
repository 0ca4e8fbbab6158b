"""The pairs of a data set: two answers to one prompt, and how long the chosen ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Row, Split
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.safety.errors import InputError

#: Keys of the two answers, as trainers name them.
CHOSEN, REJECTED = "chosen", "rejected"
#: Pairs whose tokens are counted: the mean of as many is within a few percent.
_COUNTED = 200
#: What a chat template adds to a text of which only the bytes are known, at most.
_AROUND = 64


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt; the prompt is empty where the row has none of its own."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class ChosenLength:
    """How long the chosen answers of a file are, in the mean.

    Attributes:
        answer: tokens of the answer alone.
        whole: tokens of prompt and answer, as the chat template puts them together.

    Without a tokenizer bytes are counted: a token has at least one.
    """

    answer: float
    whole: float


def pairs_of(split: Split) -> list[Pair]:
    """The pairs of a file; rows that are none are left out."""
    found = []
    for row in split.rows:
        chosen, rejected = _turns(row, CHOSEN), _turns(row, REJECTED)
        if chosen and rejected:
            stated = row.get("prompt", "")
            before = _text_of(stated) if stated else "\n".join(chosen[:-1])
            found.append(Pair(before, chosen[-1], rejected[-1]))
    return found


def chosen_length(split: Split, tokenizer: Tokenizer | None) -> ChosenLength | None:
    """The mean length of the chosen answers of a file; None where it has no pairs."""
    pairs = pairs_of(split)
    some = pairs[:: max(1, len(pairs) // _COUNTED)]
    if not some:
        return None
    if tokenizer is not None:
        try:
            answers = [len(tokenizer.encode(one.chosen, False)) for one in some]
            wholes = [_whole(one, tokenizer) for one in some]
        except InputError:
            pass
        else:
            return ChosenLength(sum(answers) / len(some), sum(wholes) / len(some))
    answers = [len(one.chosen.encode()) for one in some]
    wholes = [len(one.prompt.encode()) + len(one.chosen.encode()) + _AROUND for one in some]
    return ChosenLength(sum(answers) / len(some), sum(wholes) / len(some))


def _whole(pair: Pair, tokenizer: Tokenizer) -> int:
    turns = [
        {"role": "user", "content": pair.prompt},
        {"role": "assistant", "content": pair.chosen},
    ]
    try:
        return len(tokenizer.apply_chat_template(turns))
    except TemplateFailure:
        return len(tokenizer.encode(pair.prompt)) + len(tokenizer.encode(pair.chosen))


def _turns(row: Row, key: str) -> list[str]:
    """What is said in an answer, or in each message of a conversation that it ends."""
    value: Any = row.get(key)
    if isinstance(value, Mapping):
        value = value.get("messages", value.get("content"))
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or not value:
        return []
    said = [one.get("content") if isinstance(one, Mapping) else one for one in value]
    if not isinstance(said[-1], str):
        return []
    return [one for one in said if isinstance(one, str)]


def _text_of(prompt: object) -> str:
    """A prompt as text, or what is said in its messages."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return ""
    said = [one.get("content") if isinstance(one, Mapping) else one for one in prompt]
    return "\n".join(one for one in said if isinstance(one, str))
