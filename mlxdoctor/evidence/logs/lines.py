"""Lines of a log: without colours, split where a progress bar overwrote itself."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

#: Characters that are cleaned at a time, so that memory stays near the file's size.
CHUNK = 4 << 20

#: CSI, OSC (ended by BEL or ST) and two-character escapes; an unended one stays in its line.
_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b[ -/]?[0-Z\\^-~]|\x9b[0-?]{0,64}[@-~]"
)
_PLAIN_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

#: A number as trainers print it: thousands may be separated, nan and inf are numbers.
NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|(?:nan|NaN|NAN|inf|Inf|INF)(?:inity)?(?![A-Za-z]))"
)


def strip_escapes(text: str) -> str:
    """The text without terminal control sequences."""
    if "\x1b" not in text and "\x9b" not in text:
        return text
    # A coloured table repeats a handful of codes: replacing each is 5 times faster
    # than matching a pattern half a million times.
    for code in sorted(set(_PLAIN_COLOUR.findall(text[:65_536])), key=len, reverse=True)[:32]:
        text = text.replace(code, "")
    return _ESCAPE.sub("", text) if "\x1b" in text or "\x9b" in text else text


def lines(texts: str | Iterable[str]) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and the cleaned pieces of each line.

    A line that a progress bar overwrote (`\\r`) yields its pieces one by one.

    Args:
        texts: the log, or pieces of it that each end where a line or a rewriting of it ends.
    """
    texts = (texts,) if isinstance(texts, str) else texts
    number = 0
    for chunk in (chunk for text in texts for chunk in _chunks(text)):
        rewritten = "\r" in chunk
        pieces = strip_escapes(chunk).split("\n")
        ended = len(pieces) - 1
        if not pieces[-1]:
            pieces.pop()
        if not rewritten:
            yield from enumerate(pieces, number + 1)
        else:
            for offset, piece in enumerate(pieces, number + 1):
                for part in piece.split("\r"):
                    if part:
                        yield offset, part
        number += ended


def _chunks(text: str) -> Iterator[str]:
    if len(text) <= CHUNK:
        yield text
        return
    position = 0
    while position < len(text):
        end = text.find("\n", position + CHUNK)
        end = len(text) if end < 0 else end + 1
        yield text[position:end]
        position = end


def to_number(text: str) -> float | None:
    """The number a text is, or None. `14,561`, `3.3k`, `NaN` and `Infinity` are numbers."""
    text = text.strip().strip("'\"")
    scale = {"k": 1e3, "K": 1e3, "m": 1e6, "M": 1e6, "%": 1.0}.get(text[-1:], 0.0)
    if scale:
        text = text[:-1]
    try:
        value = float(text.replace(",", "")) * (scale or 1.0)
    except ValueError:
        return None
    # Python reads 1_000 as a number; no log writes that.
    return None if "_" in text else value


def is_count(value: float) -> bool:
    """Whether a number can be a count of updates."""
    return math.isfinite(value) and value >= 0 and value == math.floor(value)
