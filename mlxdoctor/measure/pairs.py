"""The pairs of a data set: two answers to one prompt, and how long the chosen ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.dataset import Split
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
    pairs = []
    for row in split.rows:
        chosen, rejected = _contents(row.get(CHOSEN)), _contents(row.get(REJECTED))
        if chosen and rejected and chosen[-1] is not None and rejected[-1] is not None:
            before = _contents(row.get("prompt")) or chosen[:-1]
            prompt = "\n".join(text for text in before if text is not None)
            pairs.append(Pair(prompt, chosen[-1], rejected[-1]))
    return pairs


def chosen_length(split: Split, tokenizer: Tokenizer | None) -> ChosenLength | None:
    """The mean length of the chosen answers of a file; None where it has no pairs."""
    pairs = pairs_of(split)
    some = pairs[:: max(1, len(pairs) // _COUNTED)]
    if not some:
        return None
    lengths = [
        (len(pair.chosen.encode()), len(f"{pair.prompt}{pair.chosen}".encode()) + _AROUND)
        for pair in some
    ]
    if tokenizer is not None:
        with suppress(InputError):
            lengths = [
                (len(tokenizer.encode(pair.chosen, False)), _whole(pair, tokenizer))
                for pair in some
            ]
    answers, wholes = zip(*lengths, strict=True)
    return ChosenLength(fmean(answers), fmean(wholes))


def _whole(pair: Pair, tokenizer: Tokenizer) -> int:
    turns = [
        {"role": "user", "content": pair.prompt},
        {"role": "assistant", "content": pair.chosen},
    ]
    try:
        return len(tokenizer.apply_chat_template(turns))
    except TemplateFailure:
        return len(tokenizer.encode(pair.prompt)) + len(tokenizer.encode(pair.chosen))


def _contents(value: Any) -> list[str | None]:
    """A text, or what is said in each message of a conversation; None for what is no text."""
    if isinstance(value, Mapping):
        value = value.get("messages", value.get("content"))
    messages = [value] if isinstance(value, str) else value
    if not isinstance(messages, Sequence):
        return []
    texts = [each.get("content") if isinstance(each, Mapping) else each for each in messages]
    return [text if isinstance(text, str) else None for text in texts]
