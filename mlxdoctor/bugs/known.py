"""The known bugs: of mlx and mlx-lm in known_bugs.toml, of other trainers in trainer_bugs.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.version import InvalidVersion, Version

from mlxdoctor.tables import pattern, record, shipped

#: Of mlx and mlx-lm, and of other trainers; their bugs are seen in code and in training steps.
FILES = ("known_bugs.toml", "trainer_bugs.toml")
#: What is said of a bug that ends a command with a message.
MESSAGE = "The log ends with the message of a known bug: {text}"
#: Characters of a version; longer texts are none.
_LONGEST = 64


def parse_version(text: str) -> Version | None:
    """A version as Python packages write it (PEP 440); None where the text is none."""
    try:
        return Version(text) if len(text) <= _LONGEST else None
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class KnownBug:
    """A bug of a package that a run was made with.

    Attributes:
        id: its name; the finding's code is `known-bugs.` and this.
        title: a short sentence.
        package: the package that has it.
        references: public addresses: an issue, a change, the source.
        explanation: what it does, for a person who meets it for the first time.
        remedy: what to do.
        since: the first version that has it; None for the first of all.
        fixed: the first that no longer has it; None while there is none.
        verified: the last release in which a bug without a fix was seen.
        says: the sentence on what it leaves behind in a run, a template; "" where only its code
            shows it.
        error: a pattern of the message that it ends a command with, None where it ends none.
        seen_by: what finds it in a trainer's code or step: `lint RULE` or `probe CODE`.
    """

    id: str
    title: str
    package: str
    references: tuple[str, ...]
    explanation: str
    remedy: str
    since: Version | None = None
    fixed: Version | None = None
    verified: Version | None = None
    says: str = ""
    error: re.Pattern[str] | None = None
    seen_by: tuple[str, ...] = ()

    @property
    def versions(self) -> str:
        """The package and its versions with the bug, for a reader."""
        bounds = [f"since {self.since}"] if self.since is not None else []
        bounds.append(f"fixed in {self.fixed}" if self.fixed is not None else "not fixed yet")
        return f"{self.package}, {', '.join(bounds)}"

    def affects(self, version: Version) -> bool:
        """Whether a version has the bug.

        A pre-release comes before its release: it has what the release fixes.
        """
        is_since = self.since is None or version >= self.since
        return is_since and (self.fixed is None or version < self.fixed)


@cache
def load_known_bugs() -> Mapping[str, KnownBug]:
    """The shipped lists, by id, in the files' order.

    Raises:
        InputError: one has an unknown or a missing key.
    """
    return {
        name: _bug(file, name, table)
        for file in FILES
        for name, table in shipped("mlxdoctor.bugs", file).items()
    }


def _bug(file: str, name: str, table: Mapping[str, Any]) -> KnownBug:
    keys = ("since", "fixed", "verified")
    versions = {key: Version(table[key]) for key in keys if key in table}
    error = pattern(file, name, table, "error")
    says = MESSAGE if error else ""
    return record(KnownBug, file, name, {"says": says, **table}, id=name, error=error, **versions)
