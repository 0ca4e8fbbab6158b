"""Text of a run in our own sentences: between marks that nothing else uses.

Whatever a check quotes of training rows, outputs or log lines goes through `quoted`. A
report that leaves the house then has it taken out by its marks (`--no-text`).
"""

import re
import unicodedata

#: Around text of a run, and around nothing else.
OPENING, CLOSING = "“", "”"
#: What stands where text was taken out.
WITHHELD = "(withheld)"
#: Longer texts are cut (characters).
MAX_QUOTED = 80
#: A line of a log, or what a template complains of, says more at its end (characters).
MAX_LINE = 400

#: Longer texts from artifacts are cut (characters): a log line can be a megabyte.
MAX_CHARACTERS = 1_000

# Joiners shape letters in Persian, Hindi and emoji; they hide and reorder nothing.
_HARMLESS = frozenset("\u200c\u200d")
# A quotation that was cut off later has no end of its own.
_QUOTATION = re.compile(f"{OPENING}[^{CLOSING}]*(?:{CLOSING}|\\Z)")


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with control, bidirectional and other invisible characters spelled out.

    ESC becomes `\\x1b`, a right-to-left override `\\u202e`; a lone surrogate
    its number. Line breaks become `\\n` unless `keep_newlines`.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = _HARMLESS | {"\n"} if keep_newlines else _HARMLESS
    return "".join(
        char
        if char.isprintable() or char in kept or unicodedata.category(char) == "Zs"
        else repr(char)[1:-1]
        for char in text
    )


def quoted(text: str, limit: int = MAX_QUOTED) -> str:
    """`text` between quotation marks, in one line, with invisible characters spelled out.

    Args:
        text: from a training row, an output, a prompt or a log line.
        limit: characters of it that are shown.
    """
    inside = visible(text if len(text) <= limit else f"{text[:limit]}…")
    for mark in (OPENING, CLOSING):
        inside = inside.replace(mark, '"')
    return f"{OPENING}{inside}{CLOSING}"


def without_quotations(text: str) -> str:
    """`text` with everything that `quoted` put into it taken out."""
    return _QUOTATION.sub(f"{OPENING}{WITHHELD}{CLOSING}", text)


def cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    """`text`, or its first `limit` characters and how many are left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"
