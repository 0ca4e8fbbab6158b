"""Texts that hold a question and its answer under marks of their own, outside any template."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxdoctor.engines.text import END_TEXTS, evenly

#: Share of the texts that are a question with its answer, where all are taken for that.
EXCHANGES = 0.9

#: What people call the one who asks, and the one who answers, in plain text.
_ASKING = (
    r"instructions?|questions?|q|users?|humans?|inputs?|prompts?|customer|student|query|problem"
)
_ANSWERING = (
    r"responses?|answers?|a|assistant|bot|chatbot|ai|outputs?|completions?|agent|gpt|model|solution"
)
#: Such a name with signs around it that make it a heading: `### Name:`, `<|name|>`, `**Name:**`.
_MARKER = re.compile(
    r"(?:^|\n)[ \t]*(?:"
    r"\#{1,6}[ \t]*(?P<a>[A-Za-z]+)[ \t]*:?"
    r"|(?:<\|?(?:im_start|start_header_id|start_of_turn)\|?>)+(?P<b>[A-Za-z]+)"
    r"(?:<\|end_header_id\|>|(?=\n))"
    r"|(?:<\|?|\[\|)(?P<f>[A-Za-z]+)(?:\|?>|\|\])"
    r"|\[(?P<c>[A-Za-z]+)\]"
    r"|\*\*(?P<d>[A-Za-z]+)(?:\*\*[ \t]*:|:[ \t]*\*\*)"
    r"|(?P<e>[A-Za-z]+)[ \t]*:"
    r")"
)
_INSTRUCTION = re.compile(r"\[INST\](?P<asked>.*?)\[/INST\]", re.DOTALL)
#: A line that begins with a name of its own: `MAIL:`, `IN>`. And an arrow, or signs like it.
_HEADING = re.compile(r"(?:^|\n)(?P<mark>\S[^\n:>]{0,29}[:>])(?=\s)")
_ARROW = re.compile(r"(?<=\s)(?P<mark>[-=~]+>+|#{2,}|={2,}|\|{1,3}|>{2,})(?=\s)")
_ASKS = re.compile(_ASKING, re.IGNORECASE)
_ANSWERS = re.compile(_ANSWERING, re.IGNORECASE)


@dataclass(frozen=True)
class Exchange:
    """A text's last question and answer.

    Attributes:
        before: all of the text before the answer, without white space at its end.
        marks: what stands before the two, for a reader.
    """

    asked: str
    before: str
    answered: str
    marks: tuple[str, str]


def exchanges_of(texts: Sequence[str]) -> Callable[[str], Exchange | None] | None:
    """What finds question and answer in each of these texts; None where they are no exchanges.

    Names that people give to the two are known. Where those are not there, two headings or one
    arrow that nearly all texts have in common are taken for marks as well.
    """
    sample = [texts[place] for place in evenly(len(texts))]

    def fits(read: Callable[[str], Exchange | None]) -> bool:
        return sum(read(text) is not None for text in sample) >= EXCHANGES * len(sample)

    if not sample:
        return None
    if fits(exchange_in):
        return exchange_in
    marked = (_between(_HEADING, sample, 2), _between(_ARROW, sample, 1))
    return next(filter(fits, marked), None)


def _between(
    pattern: re.Pattern[str], texts: Sequence[str], count: int
) -> Callable[[str], Exchange | None]:
    """What reads a text as an exchange that has just the marks which most of these texts have."""

    sequences = Counter(tuple(pattern.findall(text)) for text in texts)
    ((usual, _),) = sequences.most_common(1)

    def read(text: str) -> Exchange | None:
        matches = [*pattern.finditer(text)]
        if len(usual) != count or tuple(match["mark"] for match in matches) != usual:
            return None
        first, last = matches[0], matches[-1]
        if count > 1 and first.start():
            return None
        asked = text[first.end() : last.start()] if count > 1 else text[: last.start()]
        return _exchange(_without_end(text), asked, last.end(), (usual[0], usual[-1]))

    return read


def _without_end(text: str) -> str:
    """The text without what closes a turn, which is no part of the answer."""
    ends = text.rstrip()
    return next((ends.removesuffix(end).rstrip() for end in END_TEXTS if ends.endswith(end)), text)


def exchange_in(text: str) -> Exchange | None:
    """The last question and answer that a text holds; None where it is no exchange."""
    text = _without_end(text)
    if "[/INST]" in text and (instructions := list(_INSTRUCTION.finditer(text))):
        last = instructions[-1]
        asked, start, marks = last["asked"], last.end(), ("[INST]", "[/INST]")
    else:
        named = [
            (match, next(filter(None, match.groups()), "")) for match in _MARKER.finditer(text)
        ]
        answers = [match for match, name in named if _ANSWERS.fullmatch(name)]
        before = answers[-1].start() if answers else 0
        asks = [match for match, name in named if _ASKS.fullmatch(name) and match.start() < before]
        if not asks:
            return None
        asked = _without_end(text[asks[-1].end() : before])
        start, marks = answers[-1].end(), (asks[-1].group().strip(), answers[-1].group().strip())
    return _exchange(text, asked, start, marks)


def _exchange(text: str, asked: str, start: int, marks: tuple[str, str]) -> Exchange | None:
    """The exchange whose answer begins at `start`; None where one of the two is empty."""
    asked, answered = asked.strip(), text[start:].strip()
    return Exchange(asked, text[:start].rstrip(), answered, marks) if asked and answered else None
