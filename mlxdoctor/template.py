"""Sentences that are filled from what was measured, so that no figure can differ from it.

    "The loss ends at {end:.3f}[; it was {start:.3f} before]."

- `{name}` and `{name:.3f}` stand for a measured value, with Python's format specifications. A tuple
  is joined by commas.
- `{rows:* row}` is "1 row" or "1,234 rows"; `{entries:* entry/entries}` gives both forms.
- A part in square brackets is left out where one of its values is None or was not measured.
  `[a|b]` takes the first alternative that has all of its values, and nothing where none has.
- `{{`, `}}`, `[[` and `]]` stand for the sign itself.
"""

import re
import string
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_PART = re.compile(r"\[\[|\]\]|\[((?:[^\[\]]|\[\[|\]\])*)\]|[^\[\]]+")
_COUNTED = "* "


class UnmeasuredError(KeyError):
    """A template names a value that was not measured."""


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template, as the module's docstring has it, with what was measured.

    Raises:
        UnmeasuredError: a value outside of square brackets is None or not there.
        ValueError: the template is not well formed, or a specification does not fit its value.
    """
    sentence = []
    for text, alternatives in _parts(template):
        if not alternatives:
            sentence.append(_filled(text, values))
            continue
        for alternative in alternatives:
            try:
                sentence.append(_filled(alternative, values))
            except UnmeasuredError:
                continue
            break
    return "".join(sentence)


def names_in(template: str) -> frozenset[str]:
    """The names of all values that a template may show, optional ones included."""
    texts = [text for whole, parts in _parts(template) for text in (parts or (whole,))]
    return frozenset(
        name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name
    )


def duration(seconds: float) -> str:
    """A time in the words of a sentence: "12 seconds", "40 minutes", "8.3 hours"."""
    if seconds < 90:
        return f"{seconds:.0f} seconds" if seconds >= 1.5 else "a second"
    return f"{seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"{seconds / 3600:.1f} hours"


@lru_cache(maxsize=4096)
def _parts(template: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The template cut into plain text, and alternatives for each part in brackets."""
    pieces = list(_PART.finditer(template))
    if sum(len(part[0]) for part in pieces) != len(template):
        raise ValueError(f"a square bracket is not closed in {template!r}")
    parts: list[tuple[str, tuple[str, ...]]] = []
    for part in pieces:
        if part[0] in ("[[", "]]"):
            parts.append((part[0][0], ()))
        elif part[1] is not None:
            inside = part[1].replace("[[", "[").replace("]]", "]")
            parts.append(("", tuple(inside.split("|"))))
        else:
            parts.append((part[0], ()))
    return tuple(parts)


def _filled(text: str, values: Mapping[str, Any]) -> str:
    sentence = []
    for literal, name, specification, _ in string.Formatter().parse(text):
        sentence.append(literal)
        if name is not None:
            value = values.get(name)
            if value is None:
                raise UnmeasuredError(name)
            sentence.append(_shown(value, specification or ""))
    return "".join(sentence)


def _shown(value: Any, specification: str) -> str:
    if specification.startswith(_COUNTED):
        singular, _, plural = specification.removeprefix(_COUNTED).partition("/")
        return f"{value:,} {singular if value == 1 else plural or singular + 's'}"
    if isinstance(value, tuple):
        return ", ".join(format(item, specification) for item in value)
    return format(value, specification)
