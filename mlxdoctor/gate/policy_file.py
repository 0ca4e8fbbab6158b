"""Reading a policy: where it is looked for, and what may stand in it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from mlxdoctor.check import Check, discover
from mlxdoctor.evidence.source import open_file
from mlxdoctor.gate.policy import Ignore, Override, Policy, Rules
from mlxdoctor.gate.thresholds import parse_thresholds, suggestion
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded

#: A policy of its own.
POLICY_NAME = "mlxdoctor.toml"
#: Names with dots between them that a key has at most.
MAX_PARTS = 200
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![\w.-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_PARTS}}}")
SEVERITIES = ("info", "warning", "error", "never")
_RULES = frozenset({"require", "require-generate", "fail-on", "suspect", "fail", "thresholds"})
_SUSPECT = ("pass", "fail")
_KEYS = _RULES | {"override", "ignore", "baseline"}


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
        if project.is_file() and _table(project) is not None:
            return project
    return None


def read_policy(path: Path) -> Policy:
    """The policy in a file: its `[tool.mlxdoctor]` if it has one, else all of it.

    Raises:
        InputError: it can't be read, or something in it is unknown or of another kind.
    """
    table = _table(path)
    if table is None:
        raise InputError(path, "has no [tool.mlxdoctor]", "name another file with --policy")
    if not table:
        remedy = "write a rule, or remove it: then those that ship hold"
        raise InputError(path, "states no rule", remedy)
    checks = discover()
    _known_keys(table, _KEYS, path, "")
    baseline = table.get("baseline")
    if baseline is not None and (not isinstance(baseline, str) or not baseline):
        raise InputError(path, "baseline is no file name", 'write baseline = "known.json"')
    rules = _rules(table, checks, path, "")
    return Policy(
        root=path.resolve().parent,
        source=path,
        rules=Rules(**{key: value for key, value in rules.items() if value is not None}),
        overrides=tuple(
            _override(one, checks, path, f"override {number}: ")
            for number, one in enumerate(_tables(table, "override", path), 1)
        ),
        ignores=tuple(
            _ignore(one, checks, path, f"ignore {number}: ")
            for number, one in enumerate(_tables(table, "ignore", path), 1)
        ),
        baseline=path.resolve().parent / baseline if baseline is not None else None,
    )


def _table(path: Path) -> Mapping[str, Any] | None:
    if not path.exists():
        raise InputError(path, "there is no such policy", "name the policy with --policy")
    try:
        document = tomllib.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is not valid TOML ({error})", "correct it") from None
    tools = document.get("tool")
    own = tools.get("mlxdoctor") if isinstance(tools, Mapping) else None
    if own is None:
        if path.name != "pyproject.toml":
            return document
        _refuse_other_spellings(document, path)
        return None
    if not isinstance(own, Mapping):
        raise InputError(path, "tool.mlxdoctor is no table", "write [tool.mlxdoctor]")
    if beside := sorted(_KEYS & document.keys()):
        problem = f"has {beside[0]} above [tool.mlxdoctor], which alone is read"
        raise InputError(path, problem, "write it below")
    return own


def _refuse_other_spellings(document: Mapping[str, Any], path: Path) -> None:
    """Refuse a policy in a project's file that nothing would read."""
    tools = document.get("tool")
    below = tools if isinstance(tools, Mapping) else {}
    named = [*((one, one) for one in document), *((one, f"tool.{one}") for one in below)]
    for name, whole in named:
        if re.sub(r"\W|_", "", name).lower() == "mlxdoctor":
            raise InputError(path, f"has [{whole}], which is not read", "write [tool.mlxdoctor]")


def _text(path: Path) -> str:
    most = current().policy_bytes
    with open_file(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise exceeded(path, f"has more than {most:,} bytes", "policy_bytes")
    text = content.decode("utf-8")
    # Parsing takes the square of them.
    if _LONG_KEY.search(text):
        raise InputError(path, f"has a key of more than {MAX_PARTS} parts", "correct it")
    return text


def _known_keys(table: Mapping[str, Any], known: frozenset[str], path: Path, where: str) -> None:
    for key in table:
        if key not in known:
            raise InputError(path, f"{where}unknown key {key!r}", suggestion(key, known))


def _tables(table: Mapping[str, Any], key: str, path: Path) -> Sequence[Mapping[str, Any]]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise InputError(path, f"{key} is no list of tables", f"write [[tool.mlxdoctor.{key}]]")
    return value


def _strings(
    table: Mapping[str, Any], key: str, path: Path, where: str, example: str
) -> tuple[str, ...] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise InputError(path, f"{where}{key} is no list of names", f'write {key} = ["{example}"]')
    return tuple(value)


def _rules(
    table: Mapping[str, Any], checks: Sequence[Check], path: Path, where: str
) -> dict[str, Any]:
    """The fields of `Rules`, None where the table does not state one."""
    require = _strings(table, "require", path, where, "loss-trend")
    names = {one.name for one in checks}
    for name in require or ():
        if name not in names:
            problem = f"{where}require names the unknown check {name!r}"
            raise InputError(path, problem, suggestion(name, names))
    models = table.get("require-generate")
    if models is not None and not isinstance(models, bool):
        raise InputError(path, f"{where}require-generate is {models!r}", "write true or false")
    fail = _strings(table, "fail", path, where, "weight-drift.large")
    for code in fail or ():
        _known_code(code, checks, path, f"{where}fail names")
    fail_on = table.get("fail-on")
    if fail_on is not None and fail_on not in SEVERITIES:
        listed = ", ".join(repr(one) for one in SEVERITIES)
        raise InputError(path, f"{where}fail-on is {fail_on!r}", f"write one of {listed}")
    suspect = table.get("suspect")
    if suspect is not None and suspect not in _SUSPECT:
        listed = " or ".join(f'"{one}"' for one in _SUSPECT)
        raise InputError(path, f"{where}suspect is {suspect!r}", f"write {listed}")
    thresholds = table.get("thresholds", {})
    if not isinstance(thresholds, Mapping):
        raise InputError(path, f"{where}thresholds is no table", "write a table for each check")
    return {
        "require": require,
        "require_generate": models,
        "fail_on": fail_on,
        "suspect": suspect,
        "fail": frozenset(fail) if fail is not None else None,
        "thresholds": parse_thresholds(thresholds, checks, str(path)),
    }


def _known_code(code: object, checks: Sequence[Check], path: Path, where: str) -> None:
    known = {name for one in checks for name in (one.name, *one.codes)}
    if not isinstance(code, str) or code not in known:
        remedy = suggestion(str(code), known)
        remedy = "`mlxdoctor checks` lists the codes" if remedy == "remove it" else remedy
        raise InputError(path, f"{where} the unknown code {code!r}", remedy)


def _paths(table: Mapping[str, Any], path: Path, where: str) -> tuple[str, ...]:
    patterns = _strings(table, "paths", path, where, "adapters/old/**") or ()
    if any(one.startswith(("!", "#")) or not one.strip() for one in patterns):
        problem = f"{where}paths holds a pattern that is empty or begins with '!' or '#'"
        raise InputError(path, problem, "write patterns of paths, relative to the policy")
    return patterns


def _override(
    table: Mapping[str, Any], checks: Sequence[Check], path: Path, where: str
) -> Override:
    _known_keys(table, _RULES | {"paths"}, path, where)
    paths = _paths(table, path, where)
    if not paths:
        raise InputError(path, f"{where}paths is missing", 'write paths = ["adapters/old/**"]')
    if len(table) == 1:
        raise InputError(path, f"{where}changes nothing", "state a rule beside paths, or remove it")
    return Override(paths, **_rules(table, checks, path, where))


def _ignore(table: Mapping[str, Any], checks: Sequence[Check], path: Path, where: str) -> Ignore:
    _known_keys(table, frozenset({"code", "reason", "paths", "expires"}), path, where)
    _known_code(table.get("code"), checks, path, f"{where}code names")
    reason = table.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise InputError(path, f"{where}a reason is missing", 'write reason = "why it is accepted"')
    expires = table.get("expires")
    if expires is not None and (not isinstance(expires, date) or isinstance(expires, datetime)):
        problem = f"{where}expires is {expires!r}"
        raise InputError(path, problem, "write a date without quotes: expires = 2030-01-31")
    return Ignore(str(table["code"]), reason.strip(), _paths(table, path, where), expires)
