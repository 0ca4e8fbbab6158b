"""Reading a policy: where it is looked for, and what may stand in it.

What a key takes is what the field of its dataclass in `policy.py` is annotated with.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mlxdoctor.check import discover
from mlxdoctor.evidence.source import read_bytes, require_file
from mlxdoctor.gate.policy import Ignore, Patterns, Policy, Rules
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_QUOTED, cut

#: A policy of its own.
POLICY_NAME = "mlxdoctor.toml"
#: Names with dots between them that a key has at most.
MAX_PARTS = 200
#: Names that are listed where an unknown one is like none of them.
MAX_LISTED = 16
_PART = r"(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![\w.-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_PARTS}}}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


#: Annotation of a field -> what to write, whether a value is that, and how it is kept.
KINDS: Mapping[Any, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    list: ("each of them below [[its name]]", lambda value: isinstance(value, list), list),
    bool: ("true or false", lambda value: isinstance(value, bool), bool),
    str: ("a text", _is_text, str.strip),
    float: ("a number of seconds", lambda value: type(value) in (int, float) and value > 0, float),
    tuple[str, ...]: ('a list of texts: ["loss-trend"]', _are_texts, tuple),
    frozenset[str]: ('a list of texts: ["loss-trend"]', _are_texts, frozenset),
    # A time of a day is a date, too.
    date | None: (
        "a day without quotes: 2030-01-31",
        lambda day: type(day) is date,
        lambda day: day,
    ),
    Patterns: (
        'a list of paths, seen from the policy, without "!" or "#": ["adapters/old/**"]',
        lambda value: _are_texts(value) and not any(p.startswith(("!", "#")) for p in value),
        tuple,
    ),
}
#: Keys that hold for all items alike; all but the seconds are paths from the policy's folder.
_OF_THE_WHOLE = {"baseline": str, "base": str, "data": str, "budget": float}
#: The key that names a policy further up, which holds where this one says nothing.
_EXTEND = "extend"
#: Keys whose values name a check, or a code as well.
NAMED = {"require": "check", "fail": "code", "code": "code"}


def find_policy(start: Path) -> Path | None:
    """The nearest `mlxdoctor.toml`, or else `pyproject.toml` with a table of ours, from `start` up.

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
    try:
        return _policy(path, table)
    except InputError as error:
        raise InputError(path, error.problem, error.remedy) from None


def _policy(path: Path, table: Mapping[str, Any]) -> Policy:
    checks = {check.name: check.symptoms for check in discover()}
    names = {"check": checks.keys(), "code": {*checks, *chain(*checks.values())}}
    rules = _kinds(Rules)
    kinds = {**rules, **_OF_THE_WHOLE, _EXTEND: str, "override": list, "ignore": list}
    values = _parsed(table, kinds, names)
    above = values.pop(_EXTEND, None)
    overrides = []
    for number, part in enumerate(values.pop("override", ()), 1):
        where = f"override {number}: "
        changed = _parsed(part, {**rules, "paths": Patterns}, names, where, ("paths",))
        if len(changed) == 1:
            remedy = "state a rule beside paths, or remove it"
            raise InputError(None, f"{where}changes nothing", remedy)
        overrides.append((changed.pop("paths"), changed))
    ignores = [
        _parsed(part, _kinds(Ignore), names, f"ignore {number}: ", ("code", "reason"))
        for number, part in enumerate(values.pop("ignore", ()), 1)
    ]
    root = path.resolve().parent
    whole = {key: values.pop(key) for key in _OF_THE_WHOLE if key in values}
    places = {key: root / value for key, value in whole.items() if key != "budget"}
    own = Policy(
        root=root,
        source=path,
        rules=Rules(**values),
        overrides=tuple(overrides),
        ignores=tuple(Ignore(**ignore) for ignore in ignores),
        **{**whole, **places},
    )
    if above is None:
        return own
    if (root / above).resolve().parent not in root.parents:
        remedy = "name the mlxdoctor.toml or pyproject.toml of a folder above it"
        raise InputError(None, f"{_EXTEND} names no policy further up", remedy)
    return _extended(read_policy(root / above), own, values)


def _extended(above: Policy, own: Policy, stated: Mapping[str, Any]) -> Policy:
    """The policy above with what one below states, which holds in the folder of the latter.

    Args:
        stated: the fields of its general rules that it states.
    """
    folder = own.root.relative_to(above.root).as_posix()

    def below(patterns: Patterns) -> Patterns:
        # As in a .gitignore, a pattern without a slash matches in every folder.
        anywhere = ["" if "/" in each.rstrip("/") else "**/" for each in patterns]
        pairs = zip(anywhere, patterns, strict=True)
        return tuple(f"/{folder}/{before}{each.removeprefix('/')}" for before, each in pairs)

    every = ("**",)
    overrides = [(every, stated), *own.overrides] if stated else own.overrides
    ignores = (replace(ignore, paths=below(ignore.paths or every)) for ignore in own.ignores)
    return replace(
        above,
        source=own.source,
        overrides=(*above.overrides, *((below(paths), rules) for paths, rules in overrides)),
        ignores=(*above.ignores, *ignores),
        baseline=own.baseline or above.baseline,
        base=own.base or above.base,
        data=own.data or above.data,
        budget=own.budget or above.budget,
    )


def _kinds(kind: type[Any]) -> dict[str, Any]:
    """Key -> annotation of its field."""
    hints = get_type_hints(kind, include_extras=True)
    return {name.replace("_", "-"): hint for name, hint in hints.items()}


def _parsed(
    stated: Any,
    kinds: Mapping[str, Any],
    names: Mapping[str, Collection[str]],
    where: str = "",
    needed: Sequence[str] = (),
) -> dict[str, Any]:
    """The values of a table, by fields; `kinds` are the keys that it may have and their types."""
    if not isinstance(stated, Mapping):
        problem = f"{where.rstrip('.: ')} is no table"
        raise InputError(None, problem, "write a line for each key below it")
    for key in needed:
        if key not in stated:
            raise InputError(None, f"{where}{key} is missing", f"write {KINDS[kinds[key]][0]}")
    values = {}
    for key, value in stated.items():
        if key not in kinds:
            raise InputError(None, f"{where}{key} is an unknown key", _suggestion(key, kinds))
        # What is in no table is a Literal.
        options = get_args(kinds[key])
        one_of = (f"one of {', '.join(map(repr, options))}", options.__contains__, str)
        wanted, fits, keep = KINDS.get(kinds[key], one_of)
        if not fits(value):
            problem = f"{where}{key} is {cut(repr(value), MAX_QUOTED)}"
            raise InputError(None, problem, f"write {wanted}")
        values[key.replace("-", "_")] = keep(value)
        if (about := NAMED.get(key)) is not None:
            for name in [value] if isinstance(value, str) else value:
                if name not in names[about]:
                    problem = f"{where}{key} names the unknown {about} {name!r}"
                    raise InputError(None, problem, _suggestion(name, names[about]))
    return values


def _suggestion(name: str, known: Iterable[str]) -> str:
    """What may have been meant by an unknown name, as the remedy of an error."""
    known = sorted(known)
    if close := get_close_matches(name, known, n=1):
        return f"did you mean {close[0]!r}?"
    is_short = known and len(known) <= MAX_LISTED
    return f"known are {', '.join(known)}" if is_short else "see `mlxdoctor checks`"


def _table(path: Path) -> Mapping[str, Any] | None:
    """The policy in a file; None where a project's file has none."""
    if not path.exists():
        raise InputError(path, "there is no such policy", "name the policy with --policy")
    # A project's file may be empty.
    content = read_bytes(path, "policy_bytes")[0] if require_file(path) else b""
    try:
        text = content.decode("utf-8")
        # Parsing takes the square of them.
        if _LONG_KEY.search(text):
            raise InputError(path, f"has a key of more than {MAX_PARTS} parts", "correct it")
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(path, f"is not valid TOML ({error})", "correct it") from None
    tools = document.get("tool")
    below = tools if isinstance(tools, Mapping) else {}
    own = below.get("mlxdoctor")
    if own is None:
        if path.name != "pyproject.toml":
            return document
        # A policy that nothing would read, because its table has another name.
        for name in (*document, *(f"tool.{key}" for key in below)):
            if re.sub(r"\W|_", "", name.removeprefix("tool.")).lower() == "mlxdoctor":
                problem = f"has [{name}], which is not read"
                raise InputError(path, problem, "write [tool.mlxdoctor]")
        return None
    if not isinstance(own, Mapping):
        raise InputError(path, "tool.mlxdoctor is no table", "write [tool.mlxdoctor]")
    if beside := sorted(_kinds(Rules).keys() & document.keys()):
        problem = f"has {beside[0]} above [tool.mlxdoctor], which alone is read"
        raise InputError(path, problem, "write it below")
    return own
