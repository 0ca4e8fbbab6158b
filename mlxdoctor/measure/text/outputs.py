"""One model output as a sequence of units: its token ids, or words where ids are unknown."""

import re
import unicodedata
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mlxdoctor.engines.text import END_TEXTS, LONGEST, words
from mlxdoctor.measure.text.statistics import Rate, rate
from mlxdoctor.models.generations import Generation, Generations

#: A special token written out: `<|im_end|>`, `</s>`, `<end_of_turn>`, `[PAD]`.
SPECIAL_TEXT = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|\[\|[^\[\]|\s]{1,40}\|\]|</?[a-z_]{1,30}>|\[(?:PAD|UNK|SEP|CLS|EOS|BOS)\]"
)
#: Characters without a width that stand alone in no script: zero width space, word joiner, the mark
#: of the byte order, soft hyphen.
_UNSEEN = re.compile("[\u200b\u2060\ufeff\u00ad]")
_UNIT = re.compile(SPECIAL_TEXT.pattern + r"|\w+|[^\w\s]")


@dataclass(frozen=True)
class Output:
    """What one model answered to one prompt.

    Attributes:
        units: token ids, or words and signs where the ids are unknown.
        ends: the units that end an answer.
        max_tokens: the limit it was generated under, where known.
    """

    text: str
    units: tuple[Hashable, ...]
    ends: frozenset[Hashable]
    from_tokens: bool
    max_tokens: int | None

    @property
    def content(self) -> tuple[Hashable, ...]:
        """The units before the first end token."""
        return tuple(takewhile(lambda unit: unit not in self.ends, self.units))

    @property
    def has_ended(self) -> bool:
        return any(unit in self.ends for unit in self.units)


@dataclass(frozen=True)
class OutputPair:
    """Both models' outputs for one prompt; `base` is None where it is unknown."""

    item: Generation
    tuned: Output
    base: Output | None


def as_read(text: str) -> str:
    """What a reader sees of an answer: no special tokens, accents and blanks in one form each."""
    plain = _UNSEEN.sub("", unicodedata.normalize("NFC", SPECIAL_TEXT.sub("", text)))
    return "".join(" " if unicodedata.category(sign) == "Zs" else sign for sign in plain).strip()


def answer_words(text: str) -> tuple[str, ...]:
    """The words of an answer, lower-case, special tokens and punctuation left out."""
    return tuple(words(SPECIAL_TEXT.sub(" ", text[:LONGEST])))


def is_special(text: str) -> bool:
    """Whether a token's text is that of a special token."""
    return SPECIAL_TEXT.fullmatch(text.strip()) is not None


def pairs(generations: Generations) -> tuple[OutputPair, ...]:
    """Every prompt's outputs, one entry a prompt; the base's on all of them or on none."""
    ends = frozenset(generations.end_token_ids)
    items = generations.distinct
    has_base = bool(items) and all(item.base is not None for item in items)
    with_tokens = all(
        item.tuned_tokens is not None and (item.base_tokens is not None or not has_base)
        for item in items
    )

    def output(text: str, tokens: tuple[int, ...] | None, item: Generation) -> Output:
        if with_tokens and tokens is not None:
            return Output(text, tokens, ends, True, item.max_tokens)
        units = tuple(_UNIT.findall(text))
        return Output(text, units, frozenset(END_TEXTS), False, item.max_tokens)

    return tuple(
        OutputPair(
            item,
            output(item.tuned, item.tuned_tokens, item),
            output(item.base or "", item.base_tokens, item) if has_base else None,
        )
        for item in items
    )


def rate_of(outputs: Sequence[OutputPair], hit: Callable[[OutputPair, Output], bool]) -> Rate:
    """On how many prompts the tuned model's output is a hit, against the base's where known."""
    base = [hit(pair, pair.base) for pair in outputs if pair.base is not None]
    known = base if len(base) == len(outputs) else None
    return rate([hit(pair, pair.tuned) for pair in outputs], known)
