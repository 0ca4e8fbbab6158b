"""What keeps a hostile chat template from filling the memory or the day.

Jinja's sandbox keeps templates from Python's internals; it bounds `range` and nothing else.
Here everything that can make a value larger than its parts is asked first how large it would
become: operators, joining, text methods, filters, and lists that contain each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import chain
from typing import Any

#: Filters that no chat template uses and whose time or result can't be foreseen.
WITHOUT = ("lipsum", "pprint", "random", "urlize", "wordwrap", "xmlattr", "forceescape")
#: Filters whose numbers are widths or counts.
_SIZED_FILTERS = frozenset({"batch", "center", "indent", "round", "slice", "tojson", "truncate"})
_SIZED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill", "to_bytes"})
_FORMATS = frozenset({"format", "format_map"})
#: The largest width, indent or precision that a template may ask for.
MAX_WIDTH = 10_000
#: Bits of the largest whole number.
MAX_BITS = 4096
_WIDTH = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*\{|%[^a-zA-Z%]*\*")


class Guard:
    """Refuses values over `characters`; `refuse` raises the error, `tick` looks at the clock."""

    def __init__(self, characters: int, refuse: Callable[[str], Any]) -> None:
        self.characters = characters
        self._refuse = refuse

    def size(self, *values: Any) -> int:
        """About how many characters values have once written out; refused where too many."""
        total = 0
        left = list(values)
        while left:
            one = left.pop()
            total += 1
            if isinstance(one, str | bytes):
                total += len(one)
            elif isinstance(one, range):
                total += 7 * len(one)
            elif isinstance(one, int) and one.bit_length() > MAX_BITS:
                self._refuse("computes a huge number")
            elif isinstance(one, Mapping):
                left.extend(chain(one.keys(), one.values()))
            elif isinstance(one, list | tuple | set | frozenset):
                left.extend(one)
            elif type(one).__name__ == "Namespace":
                left.extend(vars(one).values())
            if total + len(left) > self.characters:
                self._refuse(f"makes over {self.characters:,} characters")
        return total

    def checked(self, value: Any) -> Any:
        """The value itself, where it is small enough."""
        self.size(value)
        return value

    def at_most(self, count: int) -> None:
        """Refuse a result of that many characters."""
        if count > self.characters:
            self._refuse(f"repeats over {self.characters:,} characters")

    def operator(self, operator: str, left: Any, right: Any) -> None:
        """Refuse an operation whose result would be too large."""
        if operator == "**":
            if any(isinstance(one, int | float) and abs(one) > 1024 for one in (left, right)):
                self._refuse("computes a huge power")
        elif operator == "%" and isinstance(left, str):
            self.formatting(left, right)
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if hasattr(many, "__len__") and isinstance(times, int):
                    self.at_most(len(many) * times)
        elif operator == "+":
            self.at_most(sum(len(one) for one in (left, right) if hasattr(one, "__len__")))
        for one in (left, right):
            if isinstance(one, int) and one.bit_length() > MAX_BITS:
                self._refuse("computes a huge number")

    def formatting(self, layout: str, *values: Any) -> None:
        """Refuse a format whose widths, or whose fields times its values, are too large."""
        if _NESTED.search(layout):
            self._refuse("states a width by a value")
        widths = sum(min(int(one[:9]), 10**9) for one in _WIDTH.findall(layout))
        fields = layout.count("{") + layout.count("%")
        self.at_most(len(layout) + widths + fields * self.size(*values))

    def call(self, function: Any, arguments: Iterable[Any], named: Mapping[str, Any]) -> None:
        """Refuse a call of a text's method, or of a function, that would give too much."""
        values = [*arguments, *named.values()]
        self.size(*values)
        # The sandbox wraps a text's `format`.
        function = getattr(function, "__wrapped__", function)
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if isinstance(owner, int) and not isinstance(owner, bool):
            self._widths(values)
        if not isinstance(owner, str | bytes):
            return
        if name in _FORMATS:
            self.formatting(str(owner), *values)
        elif name in _SIZED_METHODS:
            self._widths(values)
            if name == "expandtabs":
                self.at_most(
                    len(owner) * max([8, *(one for one in values if isinstance(one, int))])
                )
        elif name == "replace" and len(values) >= 2 and isinstance(values[1], str | bytes):
            found = owner.count(values[0])
            self.at_most(len(owner) + found * len(values[1]))
        elif name == "join" and values:
            self.at_most(self.size(values[0]) + len(owner) * len(list(_known(values[0]))))
        elif name == "translate":
            self.at_most(len(owner) * self.size(*values))

    def _widths(self, values: Iterable[Any]) -> None:
        if any(isinstance(one, int) and abs(one) > MAX_WIDTH for one in values):
            self._refuse(f"asks for a width over {MAX_WIDTH:,}")

    def filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, with what it is given and what it returns bounded."""
        # Jinja puts its context or environment first for filters with this mark.
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def bounded(*arguments: Any, **named: Any) -> Any:
            given = list(arguments)
            if name in {"join", "list", "sum", "sort", "string"} and len(given) > skipped:
                given[skipped] = self._gathered(given[skipped])
            values = [*given[skipped:], *named.values()]
            size = self.size(*values)
            if name in _SIZED_FILTERS:
                self._widths(values[1:])
            if name == "format" and isinstance(values[0], str):
                self.formatting(values[0], *values[1:])
            elif name == "replace":
                self.call(str(values[0]).replace, [str(one) for one in values[1:3]], {})
            elif name == "join":
                separator = len(str(values[1])) if len(values) > 1 else 0
                self.at_most(size + separator * len(list(_known(values[0]))))
            elif name in {"indent", "tojson"}:
                width = max([4, *(one for one in values[1:] if isinstance(one, int))])
                self.at_most(size * (width + 6))
            return self.checked(function(*given, **named))

        return bounded

    def _gathered(self, values: Any) -> Any:
        """The values of a generator as a list, each looked at as it comes."""
        if isinstance(values, str | bytes | Mapping | list | tuple) or not hasattr(
            values, "__next__"
        ):
            return values
        found, total = [], 0
        for one in values:
            total += self.size(one)
            self.at_most(total)
            found.append(one)
        return found


def _known(values: Any) -> Iterable[Any]:
    return values if isinstance(values, str | bytes | list | tuple | range | Mapping | set) else ()
