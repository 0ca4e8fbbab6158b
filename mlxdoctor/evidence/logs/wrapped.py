"""Logs whose lines a terminal, a pager or an editor broke at its width: joined again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from mlxdoctor.evidence.logs.lines import strip_escapes

#: Widths at which lines are broken; no report is shorter, no terminal wider.
WIDTHS = range(30, 201)
#: Broken lines that show it.
MIN_BROKEN = 3
#: Lines at the beginning that are looked at.
HEAD_LINES = 400
#: Characters likewise.
HEAD_CHARACTERS = 1 << 17
#: A head that grew so much is looked at again: each line of it about five times.
GROWTH = 1.25
#: Parts of one line that are joined.
MAX_PARTS = 40

_FIRST = re.compile(r"\W*\d*\W*([A-Za-z]+|[^\sA-Za-z\d]|\d)")
_STARTS = re.compile(
    r"\W{0,12}(?:(?:iter|iteration|epoch|step|batch|ep|val(?! took)|valid|validation|eval|train"
    r"|saved|save|starting|loading|trainable|total|test|traceback|calculating|warning|info|error)\b|[\[{╭╰│|#]"
    r"|\d{4}-\d\d)",
    re.IGNORECASE,
)


def unwrapped(
    texts: Iterator[str], worth: Callable[[str], tuple[int, int]], head_size: int
) -> Iterator[str]:
    """The log's text, in which broken lines are whole again where that makes more of it readable.

    Args:
        texts: the text in pieces that each end where a line does.
        worth: how many reports and how many figures a text holds.
        head_size: characters that are looked at.
    """
    head = ""
    while len(head) < head_size and (piece := next(texts, None)) is not None:
        head += piece
    unwrapping = Unwrapping(worth)
    yield from filter(None, (unwrapping.read(piece) for piece in chain((head,), texts)))
    yield unwrapping.rest()


def _is_head(text: str) -> bool:
    """Whether so little of a log says nothing yet of how it goes on."""
    # A progress bar that is written over and over is one line, however long.
    return len(text) < HEAD_CHARACTERS and text.count("\n") < HEAD_LINES


class Unwrapping:
    """Makes broken lines of a log whole that comes piece by piece, as soon as some show it.

    Args:
        worth: how many reports and how many figures a text holds.
    """

    def __init__(self, worth: Callable[[str], tuple[int, int]]) -> None:
        self._worth = worth
        self._head, self._held = "", ""
        self._join: Callable[[list[str]], str] | None = None
        self._is_undecided = True
        self._looked_at = 0

    def read(self, piece: str) -> str:
        """The text with whole lines, without what may go on in the next piece."""
        if self._is_undecided:
            self._decide(piece)
        if self._join is None:
            return piece
        lines = (self._held + piece).split("\n")
        starts = (at for at in range(len(lines) - 1, 0, -1) if _STARTS.match(lines[at]))
        # Without one, all may be a line that goes on.
        cut = next(starts, 0 if len(lines) <= MAX_PARTS else len(lines) - 1)
        self._held = "\n".join(lines[cut:])
        return self._join(lines[:cut]) + "\n" if cut > 0 else ""

    def _decide(self, piece: str) -> None:
        """Look at what came so far, unless it is little more than was looked at before."""
        self._head += piece
        is_head = _is_head(self._head)
        if is_head and len(self._head) < GROWTH * self._looked_at:
            return
        self._looked_at = len(self._head)
        self._join = _joiner(self._head, self._worth)
        self._is_undecided = self._join is None and is_head
        if not self._is_undecided:
            self._head = ""

    def rest(self) -> str:
        """What was held back at the end."""
        held, self._held = self._held, ""
        return self._join(held.split("\n")) if self._join is not None else held


def _joiner(
    head: str, worth: Callable[[str], tuple[int, int]]
) -> Callable[[list[str]], str] | None:
    """What joins the lines of a log that begins so; None where nothing is to be joined."""
    lines = [line.rstrip("\r") for line in strip_escapes(head).split("\n")[:HEAD_LINES]]
    width = max(map(len, lines), default=0)
    if width not in WIDTHS or "\r" in "".join(lines):
        return None
    plain = "\n".join(lines)
    best, joiner = (0, 0), None
    for is_hard in (True, False):
        if (
            sum(_is_broken(lines, place, width, is_hard) for place in range(len(lines)))
            < MIN_BROKEN
        ):
            continue
        joined = _join(lines, width, is_hard)
        if joined == plain:
            continue
        if best == (0, 0):
            best = worth(plain)
        found = worth(joined)
        if found[1] > best[1] and found[0] >= best[0]:
            best = found

            def joiner(part: list[str], width: int = width, is_hard: bool = is_hard) -> str:
                cleaned = [strip_escapes(line).rstrip("\r") for line in part]
                return _join(cleaned, width, is_hard)

    return joiner


def _is_broken(lines: list[str], place: int, width: int, is_hard: bool) -> bool:
    """Whether the next line may be the rest of this one."""
    line = lines[place]
    if place + 1 >= len(lines) or not line.strip():
        return False
    after = lines[place + 1].strip()
    if not after:
        return False
    if is_hard:
        # A blank at the end may have been lost.
        return width - 1 <= len(line) <= width
    return len(line) + 1 + len(after.split(None, 1)[0]) > width


def _join(lines: list[str], width: int, is_hard: bool) -> str:
    joined: list[str] = []
    place = 0
    while place < len(lines):
        first = whole = lines[place]
        began = _FIRST.match(first, 0, WIDTHS.stop)
        parts = 1
        while parts < MAX_PARTS and _is_broken(lines, place, width, is_hard):
            after = lines[place + 1]
            word = _FIRST.match(after, 0, WIDTHS.stop)
            same = began is not None and word is not None and began.group(1) == word.group(1)
            if _STARTS.match(after) or same:
                break
            if is_hard:
                whole += " " * (width - len(lines[place])) + after
            else:
                whole += " " + after.strip()
            place += 1
            parts += 1
        # As many line ends as before, so that the lines keep their numbers.
        joined.append(whole)
        joined.extend([""] * (parts - 1))
        place += 1
    return "\n".join(joined)
