"""Every text in a value changed alike, and the folders of this machine cut off the paths in it."""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import is_
from pathlib import Path
from typing import Any, TypeVar, cast

T = TypeVar("T")

#: Our own knowledge base is in a diagnosis as it is, and the evidence in a report's run.
OWN = frozenset({"cause", "run"})
#: Kinds of value that are no text and hold none: most values of a report.
_WITHOUT_TEXT = frozenset({int, float, bool, type(None)})


def mapped(value: T, change: Callable[[str], str], kept: frozenset[str] = OWN) -> T:
    """`value` with `change` made to each text in it; what holds none is given back as it is.

    Args:
        value: texts, numbers, frozen dataclasses, and mappings, lists and tuples of them.
        kept: names of fields and keys, wherever they are, whose values are left alone.
    """
    kind: Any = type(value)
    given: Any = value
    if kind in _WITHOUT_TEXT:
        return value
    if isinstance(value, str):
        return value if isinstance(value, Enum) else cast("T", change(value))
    if isinstance(value, list | tuple):
        items = [mapped(one, change, kept) for one in value]
        return value if all(map(is_, items, value)) else cast("T", kind(items))
    names = _names(kind)
    if names is None and not isinstance(value, Mapping):
        return value
    parts = given.items() if names is None else [(one, getattr(value, one)) for one in names]
    changed = {}
    for name, old in parts:
        # A check names what it measured as it likes: none of those names is ours.
        inside = frozenset() if name == "measured" else kept
        if name not in kept and (new := mapped(old, change, inside)) is not old:
            changed[name] = new
    if not changed:
        return value
    return cast("T", {**given, **changed} if names is None else replace(given, **changed))


@cache
def _names(kind: type[Any]) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for another kind of value."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else None


def as_seen_here(value: T) -> T:
    """`value` with paths from the current folder, or from the user's, the longer one cut off first.

    A report is passed on: it must not show where on a machine it was made. The current folder
    itself becomes ".", the user's "~".
    """
    shown = {str(Path.cwd()): ("", ".")}
    with suppress(RuntimeError):  # a container's user that no list of users knows
        shown[str(Path.home())] = ("~/", "~")
    shown.pop("/", None)
    folders = "|".join(map(re.escape, sorted(shown, key=len, reverse=True)))
    # "/work" must not be cut out of "/workshop" or "/mnt/work".
    path = re.compile(rf"(?<![\w.\-/~])({folders})(?:(/)(?=[^\s/:;,'\")])|/?(?![\w.\-/]))")

    def cleaned(text: str) -> str:
        # Most texts name no file.
        if os.sep not in text or not any(folder in text for folder in shown):
            return text
        return path.sub(lambda match: shown[match[1]][0 if match[2] else 1], text)

    return mapped(value, cleaned)
