"""What a gate demands of an adapter or run.

The general rules hold everywhere; an override replaces what it names for the paths that it
matches, the later one where two match. Paths are matched as in a `.gitignore`, against the path
from the policy's folder: `adapters/old` also matches all that is below it, `*` does not cross a
slash, `**` does.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: Paths, as a `.gitignore` has them.
Patterns = Annotated[tuple[str, ...], "patterns"]


@dataclass(frozen=True)
class Rules:
    """The rules for one item; the policy in `init.py` says what each is for.

    Attributes:
        require_generate: whether models must have shown that an adapter is better than its base
            at its own rows.
        fail: codes, or checks for all their codes, that fail it whatever their severity.
    """

    require: tuple[str, ...] = ()
    require_generate: bool = False
    fail_on: Literal["info", "warning", "error", "never"] = "error"
    suspect: Literal["pass", "fail"] = "pass"
    fail: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Ignore:
    """A finding, or all of a check, that is accepted in these paths, to the end of a day."""

    code: str
    reason: str
    paths: Patterns = ()
    expires: date | None = None

    def has_expired(self, today: date) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and self.expires < today


@dataclass(frozen=True)
class Policy:
    """All of it.

    Attributes:
        root: the folder that paths are relative to.
        source: its file; of one that extends another, its own.
        overrides: paths, and the fields of `Rules` that are others there.
        base, data, budget: of items that do not name their own, as for `mlxdoctor diagnose`.
    """

    root: Path
    source: Path | None = None
    rules: Rules = field(default_factory=Rules)
    overrides: tuple[tuple[Patterns, Mapping[str, Any]], ...] = ()
    ignores: tuple[Ignore, ...] = ()
    baseline: Path | None = None
    base: Path | None = None
    data: Path | None = None
    budget: float | None = None

    def key(self, path: str) -> str:
        """The path as patterns and baselines see it: from the policy's folder, with slashes."""
        absolute = os.path.abspath(path)  # noqa: PTH100 - as written: links are not followed
        relative = os.path.relpath(absolute, os.path.abspath(self.root))  # noqa: PTH100
        outside = relative == ".." or relative.startswith(f"..{os.sep}")
        return Path(absolute if outside else relative).as_posix()

    def rules_for(self, key: str) -> Rules:
        """The rules for the item of that key."""
        rules = self.rules
        for paths, changed in self.overrides:
            if matches(paths, key):
                rules = replace(rules, **changed)
        return rules


def matches(patterns: Sequence[str], key: str) -> bool:
    """Whether one of the patterns matches the item, or a folder it lies in."""
    spec = _spec(tuple(patterns))
    # An item may be a folder: "old/" matches it only with the slash.
    return spec.match_file(key) or spec.match_file(f"{key}/")


@cache
def _spec(patterns: tuple[str, ...]) -> "GitIgnoreSpec":
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)
