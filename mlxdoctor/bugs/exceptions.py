"""What exceptions that end a run mean, from exceptions.toml."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from mlxdoctor.evidence.logs.series import LogFailure
from mlxdoctor.safety.quoting import quoted
from mlxdoctor.tables import record, shipped

#: Prefix of named groups that match text of a training row. That text is always quoted, because
#: `--no-text` withholds what is quoted.
_ROW_PREFIX = "row_"
#: Most characters of a quoted group.
_MAX_QUOTED = 60
#: A traceback's last line: the exception's type with its modules, and its message; or a program
#: that could not be started.
_LAST_LINE = re.compile(r"(?:\S*/)?(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)


@dataclass(frozen=True)
class KnownException:
    """An exception that runs end with.

    Attributes:
        id: the table's name in exceptions.toml.
        finding: the symptom that the check `log-failures` reports.
        says: one sentence on what it means, a template that named groups of `message` fill.
        remedy: one sentence on what to do, a template filled from the same groups.
        type: names of exceptions, without their modules; empty for any.
        message: a pattern found in the exception's message; None for any.
        within: a function that the traceback shows; empty for any.
        code: a pattern found in the source line in which the traceback ends; None for any.
    """

    id: str
    finding: str
    says: str
    remedy: str
    type: tuple[str, ...] = ()
    message: re.Pattern[str] | None = None
    within: str = ""
    code: re.Pattern[str] | None = None


def meaning_of(failure: LogFailure) -> KnownException | None:
    """The known exception that ended a run, with its sentences filled; None if it is unknown."""
    last_line = _LAST_LINE.match(failure.text)
    if last_line is None:
        return None
    name, message = last_line["type"].rpartition(".")[2], last_line["message"] or ""
    # The first match counts: exceptions.toml lists special exceptions before general ones.
    for known in known_exceptions().values():
        match = known.message.search(message) if known.message is not None else None
        if (
            (not known.type or name in known.type)
            and (known.message is None or match is not None)
            and (not known.within or known.within in failure.functions)
            and (known.code is None or known.code.search(failure.code) is not None)
        ):
            texts = match.groupdict(default="") if match is not None else {}
            for group, text in texts.items():
                if group.startswith(_ROW_PREFIX) or not re.fullmatch(r"[\w.+-]*", text):
                    texts[group] = quoted(text, _MAX_QUOTED)
            says, remedy = known.says.format(**texts), known.remedy.format(**texts)
            return replace(known, says=says, remedy=remedy)
    return None


@cache
def known_exceptions() -> Mapping[str, KnownException]:
    """The known exceptions by id, in the order of exceptions.toml.

    Raises:
        InputError: a table of exceptions.toml has an unknown key or lacks one.
    """
    file = "exceptions.toml"
    return {
        name: record(KnownException, file, name, table, id=name)
        for name, table in shipped(__package__, file).items()
    }
