"""What exceptions that end a run mean, from exceptions.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from mlxdoctor.bugs.known import pattern_in
from mlxdoctor.evidence.logs.series import LogFailure
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import quoted

FILE = "exceptions.toml"
_REQUIRED = {"finding", "says", "remedy"}
_OPTIONAL = {"type", "message", "within", "code"}
#: What groups of a pattern are called that match text of a row, which a report may withhold.
_OF_A_ROW = "row_"
#: Characters of a part of a message that is repeated.
_MAX_PART = 60
_SHAPE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)


@dataclass(frozen=True)
class KnownException:
    """An exception that runs end with.

    Attributes:
        id: its name in the file.
        finding: the symptom that the check `log-failures` reports.
        types: names of exceptions, without their modules; any where empty.
        message: what its message has in it; None for any.
        within: a function that the traceback shows; empty for any.
        code: what the source line has in it that it ended in; None for any.
        says: one sentence on what it means.
        remedy: one on what to do.
    """

    id: str
    finding: str
    types: tuple[str, ...]
    message: re.Pattern[str] | None
    within: str
    code: re.Pattern[str] | None
    says: str
    remedy: str

    def read(self, failure: LogFailure) -> Meaning | None:
        """What it means here; None where this is another exception."""
        shape = _SHAPE.match(failure.text)
        if shape is None:
            return None
        kind, message = shape["type"].rpartition(".")[2], shape["message"] or ""
        found = self.message.search(message) if self.message is not None else None
        fits = (
            (not self.types or kind in self.types)
            and (self.message is None or found is not None)
            and (not self.within or self.within in failure.functions)
            and (self.code is None or self.code.search(failure.code) is not None)
        )
        if not fits:
            return None
        parts = found.groupdict(default="") if found is not None else {}
        shown = {name: _part(name, value) for name, value in parts.items()}
        return Meaning(self.finding, self.says.format(**shown), self.remedy.format(**shown))


@dataclass(frozen=True)
class Meaning:
    """What one exception means.

    Attributes:
        finding: the symptom that the check `log-failures` reports.
        says: one sentence on it.
        remedy: what to do.
    """

    finding: str
    says: str
    remedy: str


def _part(name: str, value: str) -> str:
    plain = re.fullmatch(r"[\w.+-]*", value) is not None and not name.startswith(_OF_A_ROW)
    return value if plain else quoted(value, _MAX_PART)


def meaning_of(failure: LogFailure) -> Meaning | None:
    """What the exception that ended a run means; None for one that is not known."""
    read = (one.read(failure) for one in known_exceptions().values())
    return next((one for one in read if one is not None), None)


@cache
def known_exceptions() -> Mapping[str, KnownException]:
    """The shipped list, by id, in the file's order.

    Raises:
        InputError: exceptions.toml has an unknown or a missing key, or no pattern.
    """
    document = tomllib.loads(files("mlxdoctor.bugs").joinpath(FILE).read_text("utf-8"))
    return {name: _exception(name, table) for name, table in document.items()}


def _exception(name: str, table: Mapping[str, Any]) -> KnownException:
    if unknown := table.keys() - _REQUIRED - _OPTIONAL:
        raise InputError(FILE, f"{name} has the unknown key {sorted(unknown)[0]!r}")
    if lacking := _REQUIRED - table.keys():
        raise InputError(FILE, f"{name} lacks the key {sorted(lacking)[0]!r}")
    if not {"type", "message"} & table.keys():
        raise InputError(FILE, f"{name} has neither type nor message")
    return KnownException(
        id=name,
        finding=table["finding"],
        types=tuple(table.get("type", ())),
        message=pattern_in(FILE, name, table, "message"),
        within=table.get("within", ""),
        code=pattern_in(FILE, name, table, "code"),
        says=table["says"],
        remedy=table["remedy"],
    )
