"""Texts that hold a question and its answer under names of their own, outside any template."""

import re
from dataclasses import dataclass

from mlxdoctor.engines.text import END_TEXTS

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
    r"|<\|?(?P<f>[A-Za-z]+)\|?>"
    r"|\[(?P<c>[A-Za-z]+)\]"
    r"|\*\*(?P<d>[A-Za-z]+)(?:\*\*[ \t]*:|:[ \t]*\*\*)"
    r"|(?P<e>[A-Za-z]+)[ \t]*:"
    r")"
)
_INSTRUCTION = re.compile(r"\[INST\](?P<asked>.*?)\[/INST\]", re.DOTALL)
#: What closes a turn; not a part of the answer.
_CLOSING = re.compile(rf"\s*(?:{'|'.join(map(re.escape, END_TEXTS))})\s*$")
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


def exchange_in(text: str) -> Exchange | None:
    """The last question and answer that a text holds; None where it is no exchange."""
    text = _CLOSING.sub("", text)
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
        asked = _CLOSING.sub("", text[asks[-1].end() : before])
        start, marks = answers[-1].end(), (asks[-1].group().strip(), answers[-1].group().strip())
    asked, answered = asked.strip(), text[start:].strip()
    return Exchange(asked, text[:start].rstrip(), answered, marks) if asked and answered else None
