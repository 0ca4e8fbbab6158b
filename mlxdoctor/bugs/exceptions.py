"""What exceptions that end a run mean, from exceptions.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from mlxdoctor.evidence.logs.series import LogFailure
from mlxdoctor.safety.quoting import quoted
from mlxdoctor.tables import pattern, record, shipped

FILE = "exceptions.toml"
#: Prefix of named groups that match text of a training row: it is quoted, so that `--no-text` can
#: withhold it.
_ROW_PREFIX = "row_"
#: Characters of a quoted part of a message that are shown.
_MAX_PART = 60
#: A traceback's last line: the exception's type with its modules, and its message.
_SHAPE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)


@dataclass(frozen=True)
class KnownException:
    """An exception that runs end with.

    Attributes:
        id: its name in the file.
        finding: the symptom that the check `log-failures` reports.
        says: one sentence on what it means; named groups of `message` fill it.
        remedy: one sentence on what to do, filled likewise.
        type: names of exceptions, without their modules; empty for any.
        message: a pattern that its message contains; None for any.
        within: a function that the traceback shows; empty for any.
        code: a pattern of the source line in which the traceback ends; None for any.
    """

    id: str
    finding: str
    says: str
    remedy: str
    type: tuple[str, ...] = ()
    message: re.Pattern[str] | None = None
    within: str = ""
    code: re.Pattern[str] | None = None

    def filled_from(self, failure: LogFailure) -> KnownException | None:
        """It, with its sentences filled from a failure; None where that is another exception."""
        shape = _SHAPE.match(failure.text)
        if shape is None:
            return None
        name, message = shape["type"].rpartition(".")[2], shape["message"] or ""
        match = self.message.search(message) if self.message is not None else None
        fits = (
            (not self.type or name in self.type)
            and (self.message is None or match is not None)
            and (not self.within or self.within in failure.functions)
            and (self.code is None or self.code.search(failure.code) is not None)
        )
        if not fits:
            return None
        parts = match.groupdict(default="") if match is not None else {}
        shown = {part: _shown(part, value) for part, value in parts.items()}
        return replace(self, says=self.says.format(**shown), remedy=self.remedy.format(**shown))


def _shown(part: str, value: str) -> str:
    plain = re.fullmatch(r"[\w.+-]*", value) is not None and not part.startswith(_ROW_PREFIX)
    return value if plain else quoted(value, _MAX_PART)


def meaning_of(failure: LogFailure) -> KnownException | None:
    """The exception that ended a run, with its sentences filled; None for one that is not known."""
    # The first entry that fits counts: exceptions.toml has the special ones before the general.
    meanings = (known.filled_from(failure) for known in known_exceptions().values())
    return next((meaning for meaning in meanings if meaning is not None), None)


@cache
def known_exceptions() -> Mapping[str, KnownException]:
    """The shipped list, by id, in the file's order.

    Raises:
        InputError: exceptions.toml has an unknown or a missing key.
    """
    return {
        name: record(
            KnownException,
            FILE,
            name,
            table,
            id=name,
            message=pattern(FILE, name, table, "message"),
            code=pattern(FILE, name, table, "code"),
        )
        for name, table in shipped(__package__, FILE).items()
    }
