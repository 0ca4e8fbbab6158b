"""The list of known bugs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from packaging.version import InvalidVersion, Version

from mlxdoctor.tables import record, shipped

#: The bugs of mlx and mlx-lm, and those of other trainers.
_FILES = ("known_bugs.toml", "trainer_bugs.toml")
#: `says` of every bug that ends a command with an error message.
_ENDS_WITH_MESSAGE = "The log ends with the message of a known bug: {text}"
#: Most characters of a version.
_MAX_VERSION = 64


def parse_version(text: str) -> Version | None:
    """The version of a Python package (PEP 440); None if the text is not a version."""
    try:
        return Version(text) if len(text) <= _MAX_VERSION else None
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class KnownBug:
    """A bug of mlx, mlx-lm or another trainer.

    Attributes:
        id: its name; the finding's code is `known-bugs.` and the name.
        title: a short sentence.
        package: the package that has the bug.
        references: URLs of an issue, a change or the source.
        explanation: what the bug does, for a person who meets it for the first time.
        remedy: what to do.
        since: the first version with the bug; None if all versions before `fixed` have it.
        fixed: the first version without the bug; None if it is not fixed yet.
        verified: the last release in which a bug without a fix was seen.
        says: the template of the sentence about its trace in a run; "" if a run shows no trace.
        error: a pattern of the error message that the bug ends a command with; None if it ends
            none.
        seen_by: what finds the bug in a trainer's code or step: `lint RULE` or `probe CODE`.
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
        """Whether a version has the bug; a pre-release of `fixed` still has it."""
        has_begun = self.since is None or version >= self.since
        return has_begun and (self.fixed is None or version < self.fixed)


@cache
def load_known_bugs() -> Mapping[str, KnownBug]:
    """The known bugs by id, in the order of the files.

    Raises:
        InputError: a table has an unknown key or lacks one.
    """
    bugs: dict[str, KnownBug] = {}
    for file in _FILES:
        for name, table in shipped("mlxdoctor.bugs", file).items():
            keys = ("since", "fixed", "verified")
            versions = {key: Version(table[key]) for key in keys if key in table}
            stated = {"says": _ENDS_WITH_MESSAGE if "error" in table else "", **table}
            bugs[name] = record(KnownBug, file, name, stated, id=name, **versions)
    return bugs
