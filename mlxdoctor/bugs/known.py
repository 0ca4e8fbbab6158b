"""The known bugs: of mlx and mlx-lm in known_bugs.toml, of other trainers in trainer_bugs.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mlxdoctor.bugs.versions import Affected, Version, parse_version
from mlxdoctor.safety.errors import InputError

FILE = "known_bugs.toml"
#: Of trainers other than mlx-lm; their bugs are seen in code and in training steps.
TRAINERS_FILE = "trainer_bugs.toml"
_REQUIRED = {"title", "package", "references", "explanation", "remedy"}
_OPTIONAL = {"since", "fixed", "verified", "needs-version", "trace", "says", "error", "seen-by"}
#: What is said of a bug that ends a command with a message.
MESSAGE = "The log ends with the message of a known bug: {text}"
#: A package's name as registries normalise it.
_PACKAGE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class KnownBug:
    """A bug of a package that a run was made with.

    Attributes:
        id: its name; the finding's code is `known-bugs.` and this.
        title: a short sentence.
        affected: the versions that have it.
        verified: the last release in which a bug without a fix was seen.
        trace: the name of what it leaves behind in a run; "" where only its code shows it.
        says: the sentence on that, a template.
        error: a pattern of the message that it ends a command with, None where it ends none.
        needs_version: whether that counts only where the version is known to have the bug.
        seen_by: what finds it in a trainer's code or step: `lint RULE` or `probe CODE`.
        references: public addresses: an issue, a change, the source.
        explanation: what it does, for a person who meets it for the first time.
        remedy: what to do.
    """

    id: str
    title: str
    affected: Affected
    verified: Version | None
    trace: str
    says: str
    error: re.Pattern[str] | None
    needs_version: bool
    seen_by: tuple[str, ...]
    references: tuple[str, ...]
    explanation: str
    remedy: str


@cache
def load_known_bugs() -> Mapping[str, KnownBug]:
    """The shipped lists, by id, in the files' order.

    Raises:
        InputError: one has an unknown or a missing key, or no sound version.
    """
    folder = files("mlxdoctor.bugs")
    shipped = (
        parse_known_bugs(folder.joinpath(one).read_text("utf-8"), one)
        for one in (FILE, TRAINERS_FILE)
    )
    return {name: bug for bugs in shipped for name, bug in bugs.items()}


def parse_known_bugs(text: str, file: str = FILE) -> Mapping[str, KnownBug]:
    """A list of bugs from TOML text.

    Raises:
        InputError: the text is not TOML, or has an unknown or a missing key, or no sound version.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(file, f"is not valid TOML ({error})") from None
    return {name: _bug(file, name, table) for name, table in document.items()}


def _bug(file: str, name: str, table: Any) -> KnownBug:
    if not isinstance(table, dict):
        raise InputError(file, f"{name} is not a table of a bug")
    if unknown := table.keys() - _REQUIRED - _OPTIONAL:
        raise InputError(file, f"{name} has the unknown key {sorted(unknown)[0]!r}")
    if lacking := _REQUIRED - table.keys():
        raise InputError(file, f"{name} lacks the key {sorted(lacking)[0]!r}")
    if not _PACKAGE.fullmatch(table["package"]):
        raise InputError(file, f"{name}: {table['package']!r} is no name of a package")
    since, fixed, verified = (
        _version(file, name, table, key) for key in ("since", "fixed", "verified")
    )
    if since is not None and fixed is not None and since.release >= fixed.release:
        raise InputError(file, f"{name} was fixed before it began")
    if (fixed is None) is not (verified is not None):
        raise InputError(file, f"{name} needs either `fixed` or `verified`")
    return KnownBug(
        id=name,
        title=table["title"],
        affected=Affected(table["package"], since, fixed),
        verified=verified,
        trace=table.get("trace", ""),
        says=table.get("says", MESSAGE if "error" in table else ""),
        error=pattern_in(file, name, table, "error"),
        needs_version=bool(table.get("needs-version", False)),
        seen_by=tuple(table.get("seen-by", ())),
        references=tuple(table["references"]),
        explanation=table["explanation"].strip(),
        remedy=table["remedy"].strip(),
    )


def pattern_in(file: str, name: str, table: Mapping[str, Any], key: str) -> re.Pattern[str] | None:
    """The pattern under a key of a table; None where it has no such key.

    Raises:
        InputError: it is no pattern.
    """
    if key not in table:
        return None
    try:
        return re.compile(table[key])
    except re.error as problem:
        raise InputError(file, f"{name}: {key} is not a pattern ({problem})") from None


def _version(file: str, name: str, table: Mapping[str, Any], key: str) -> Version | None:
    if key not in table:
        return None
    version = parse_version(str(table[key]))
    if version is None or version.unfinished:
        raise InputError(file, f"{name}: {key} is not the version of a release")
    return version
