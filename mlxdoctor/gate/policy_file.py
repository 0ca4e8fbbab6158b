"""Reading a policy: where it is looked for, and what may stand in it."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from mlxdoctor.check import Check, discover
from mlxdoctor.evidence.source import open_file
from mlxdoctor.gate.policy import Ignore, Override, Policy, Rules
from mlxdoctor.gate.thresholds import Wrong, parse_thresholds, suggestion
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_QUOTED, cut
from mlxdoctor.safety.reading_limits import current, exceeded

#: A policy of its own.
POLICY_NAME = "mlxdoctor.toml"
#: Names with dots between them that a key has at most.
MAX_PARTS = 200
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![\w.-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_PARTS}}}")


@dataclass(frozen=True)
class Key:
    """A key that may stand in a table of a policy.

    Attributes:
        meaning: its value and what that says, as "write …" goes on.
        fits: whether a value from the file is of its kind.
        keep: how the policy keeps the value.
        names: the names in it are those of a "check", or of a "code" as well; "" for others.
        is_required: whether it must be there.
    """

    meaning: str
    fits: Callable[[Any], bool]
    keep: Callable[[Any], Any] = lambda value: value
    names: str = ""
    is_required: bool = False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_patterns(value: Any) -> bool:
    return _are_texts(value) and not any(pattern.startswith(("!", "#")) for pattern in value)


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, Mapping) for table in value)


def _is_day(value: Any) -> bool:
    return isinstance(value, date) and not isinstance(value, datetime)


#: What may be demanded of every item, and otherwise of some.
RULES: Mapping[str, Key] = {
    "require": Key(
        'a list of checks that must have run: ["loss-trend"]', _are_texts, tuple, "check"
    ),
    "require-generate": Key(
        "true or false: whether models must have been run", lambda value: isinstance(value, bool)
    ),
    "fail-on": Key(
        "the least severity that fails an item: 'info', 'warning', 'error' or 'never'",
        lambda value: value in ("info", "warning", "error", "never"),
    ),
    "suspect": Key(
        "what becomes of an item that is suspect: 'pass' or 'fail'",
        lambda value: value in ("pass", "fail"),
    ),
    "fail": Key(
        'a list of codes or checks that fail an item whatever their severity: ["weight-drift"]',
        _are_texts,
        frozenset,
        "code",
    ),
    "thresholds": Key(
        "a table of thresholds for each check", lambda value: isinstance(value, Mapping)
    ),
}
#: The policy as a whole, and its two lists of tables.
POLICY: Mapping[str, Key] = {
    **RULES,
    "baseline": Key('the name of the file of known findings: "known.json"', _is_text),
    "override": Key("other rules for some paths below [[override]]", _are_tables),
    "ignore": Key("each accepted finding below [[ignore]]", _are_tables),
}
_PATHS = 'a list of paths, seen from the policy, without "!" or "#": ["adapters/old/**"]'
OVERRIDE: Mapping[str, Key] = {
    **RULES,
    "paths": Key(_PATHS, lambda value: _are_patterns(value) and value, tuple, is_required=True),
}
IGNORE: Mapping[str, Key] = {
    "code": Key("a code, or a check for all its codes", _is_text, names="code", is_required=True),
    "reason": Key("why the finding is accepted", _is_text, str.strip, is_required=True),
    "paths": Key(_PATHS, _are_patterns, tuple),
    "expires": Key("the last day on which it holds, without quotes: 2030-01-31", _is_day),
}


def find_policy(start: Path) -> Path | None:
    """The nearest `mlxdoctor.toml`, or `pyproject.toml` with a `[tool.mlxdoctor]`.

    Looked for in `start` and the folders above it; in one folder, `mlxdoctor.toml` wins.

    Raises:
        InputError: a pyproject.toml on the way can't be read.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if os.path.lexists(folder / POLICY_NAME):
            # Whatever it is: a policy that can't be read is not passed over in silence.
            return folder / POLICY_NAME
        project = folder / "pyproject.toml"
        if project.is_file() and _table(project, _text(project)) is not None:
            return project
    return None


def read_policy(path: Path) -> Policy:
    """The policy in a file: its `[tool.mlxdoctor]` if it has one, else all of it.

    Raises:
        InputError: it can't be read, or something in it is unknown or of another kind; the
            message names the line and the key.
    """
    text = _text(path)
    table = _table(path, text)
    if table is None:
        raise InputError(path, "has no [tool.mlxdoctor]", "name another file with --policy")
    if not table:
        remedy = "write a rule, or remove it: then those that ship hold"
        raise InputError(path, "states no rule", remedy)
    checks = discover()

    def read(name: str, number: int, stated: Mapping[str, Any], keys: Mapping[str, Key]) -> Any:
        try:
            return _values(stated, keys, checks)
        except Wrong as wrong:
            line = _line_of(text, name, number, wrong.key)
            where = f"{name} {number}: " if number else ""
            problem = f"line {line}: {where}{wrong.key} {wrong.problem}"
            raise InputError(path, problem, wrong.remedy) from None

    values = read("", 0, table, POLICY)
    overrides = [
        read("override", number, stated, OVERRIDE)
        for number, stated in enumerate(values.pop("override", ()), 1)
    ]
    ignores = [
        read("ignore", number, stated, IGNORE)
        for number, stated in enumerate(values.pop("ignore", ()), 1)
    ]
    for number, override in enumerate(overrides, 1):
        if len(override) == 1:
            line = _line_of(text, "override", number, "")
            problem = f"line {line}: override {number}: changes nothing"
            raise InputError(path, problem, "state a rule beside paths, or remove it")
    baseline = values.pop("baseline", None)
    root = path.resolve().parent
    return Policy(
        root=root,
        source=path,
        rules=Rules(**values),
        overrides=tuple(Override(changed.pop("paths"), changed) for changed in overrides),
        ignores=tuple(Ignore(**ignore) for ignore in ignores),
        baseline=root / baseline if baseline is not None else None,
    )


def _values(
    stated: Mapping[str, Any], keys: Mapping[str, Key], checks: Sequence[Check]
) -> dict[str, Any]:
    """The stated values, by the names of the policy's fields."""
    values = {}
    for name, value in stated.items():
        if name not in keys:
            raise Wrong(name, "is an unknown key", suggestion(name, keys))
        key = keys[name]
        if not key.fits(value):
            raise Wrong(name, f"is {cut(repr(value), MAX_QUOTED)}", f"write {key.meaning}")
        if key.names:
            _refuse_unknown(name, key, value, checks)
        is_table = name == "thresholds"
        kept = parse_thresholds(value, checks) if is_table else key.keep(value)
        values[name.replace("-", "_")] = kept
    for name, key in keys.items():
        if key.is_required and name not in stated:
            raise Wrong(name, "is missing", f"write {key.meaning}")
    return values


def _refuse_unknown(name: str, key: Key, value: Any, checks: Sequence[Check]) -> None:
    known = {check.name for check in checks}
    if key.names == "code":
        known |= {code for check in checks for code in check.codes}
    for stated in [value] if isinstance(value, str) else value:
        if stated not in known:
            problem = f"names the unknown {key.names} {stated!r}"
            raise Wrong(name, problem, suggestion(stated, known))


def _line_of(text: str, table: str, number: int, key: str) -> int:
    """The line of a key, or of what is above it.

    Args:
        text: the file.
        table: the table that the key is in, "" for the policy itself.
        number: which of the tables of that name; 0 where there is one.
        key: the key, with dots in it where it is below another.
    """
    wanted = f"{table}.{key}.".lstrip(".")
    counted: Counter[str] = Counter()
    place, nearest, line_of_nearest = "", "", 1
    for line_number, line in enumerate(text.splitlines(), 1):
        name, equals, _ = re.sub(r"[\"'\s]", "", line.partition("#")[0]).partition("=")
        if name.startswith("["):
            place = name.strip("[]").removeprefix("tool.mlxdoctor").lstrip(".")
            counted[place] += 1
            name = place
        elif equals:
            name = f"{place}.{name}".lstrip(".")
        is_there = not number or counted[table] == number
        if is_there and len(name) > len(nearest) and wanted.startswith(f"{name}."):
            nearest, line_of_nearest = name, line_number
    return line_of_nearest


def _table(path: Path, text: str) -> Mapping[str, Any] | None:
    """The policy in a file's text; None where a project's file has none."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is not valid TOML ({error})", "correct it") from None
    tools = document.get("tool")
    below = tools if isinstance(tools, Mapping) else {}
    own = below.get("mlxdoctor")
    if own is None:
        if path.name != "pyproject.toml":
            return document
        _refuse_other_spellings(document, below, path)
        return None
    if not isinstance(own, Mapping):
        raise InputError(path, "tool.mlxdoctor is no table", "write [tool.mlxdoctor]")
    if beside := sorted(POLICY.keys() & document.keys()):
        problem = f"has {beside[0]} above [tool.mlxdoctor], which alone is read"
        raise InputError(path, problem, "write it below")
    return own


def _refuse_other_spellings(
    document: Mapping[str, Any], tools: Mapping[str, Any], path: Path
) -> None:
    """Refuse a policy in a project's file that nothing would read."""
    for name, whole in [
        *((key, key) for key in document),
        *((key, f"tool.{key}") for key in tools),
    ]:
        if re.sub(r"\W|_", "", name).lower() == "mlxdoctor":
            raise InputError(path, f"has [{whole}], which is not read", "write [tool.mlxdoctor]")


def _text(path: Path) -> str:
    if not path.exists():
        raise InputError(path, "there is no such policy", "name the policy with --policy")
    most = current().policy_bytes
    with open_file(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise exceeded(path, f"has more than {most:,} bytes", "policy_bytes")
    try:
        text = content.decode("utf-8")
    except ValueError as error:
        raise InputError(path, f"is not valid TOML ({error})", "correct it") from None
    # Parsing takes the square of them.
    if _LONG_KEY.search(text):
        raise InputError(path, f"has a key of more than {MAX_PARTS} parts", "correct it")
    return text
