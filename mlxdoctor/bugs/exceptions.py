"""What exceptions that end a run mean, from exceptions.toml."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from mlxdoctor.evidence.logs.series import LogFailure
from mlxdoctor.safety.quoting import quoted
from mlxdoctor.tables import pattern, record, shipped

#: Prefix of named groups of a row's text, which is always quoted: `--no-text` withholds quotations.
_ROW_PREFIX = "row_"
#: Most characters of a quoted group.
_MAX_QUOTED = 60
#: A traceback's last line: the exception's type with its modules, and its message.
_LAST_LINE = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)


@dataclass(frozen=True)
class KnownException:
    """An exception that runs end with; the head of exceptions.toml says what each key is for.

    A type, message, function or code that is empty fits any.
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
    """The known exceptions by id, in the order of exceptions.toml."""
    known, file = {}, "exceptions.toml"
    for name, table in shipped(__package__, file).items():
        patterns = {key: pattern(table, key) for key in ("message", "code")}
        known[name] = record(KnownException, file, name, table, id=name, **patterns)
    return known
