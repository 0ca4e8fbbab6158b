"""The knowledge base in causes.toml: causes, and what speaks for and against each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from mlxdoctor.safety.errors import InputError

_CAUSE_KEYS = {"title", "summary", "explanation", "remedy", "prior"}
_OPTIONAL_KEYS = {"for", "against", "absent", "change", "inject"}
_OPERATIONS = ("set", "divide", "multiply")


@dataclass(frozen=True)
class Change:
    """One change to a training configuration that would cure a cause.

    Attributes:
        key: the configuration key; dots enter nested tables.
        operation: "set", "divide" or "multiply".
        value: the new value, or the factor.
    """

    key: str
    operation: str
    value: Any


@dataclass(frozen=True)
class Cause:
    """A root cause, as data.

    Attributes:
        id: the contract's name for it.
        title: a short sentence that names it.
        summary: what it does to a run, in one line.
        explanation: a paragraph for a person who meets it for the first time.
        remedy: what to do, in one or two sentences.
        prior: log-odds before anything was seen (natural logarithm).
        weights: code -> log-odds that the finding adds; negative: it speaks against.
        absent: code -> log-odds (negative) added when the check looked and did
            not report that code.
        change: the configuration change that cures it; None where no key does.
        inject: faults of the reference trainer that re-create it where it lies in a run's
            own trainer, the likeliest first.
    """

    id: str
    title: str
    summary: str
    explanation: str
    remedy: str
    prior: float
    weights: Mapping[str, float] = field(default_factory=dict)
    absent: Mapping[str, float] = field(default_factory=dict)
    change: Change | None = None
    inject: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnowledgeBase:
    """All causes, and the groups of findings that stem from one fact.

    Attributes:
        causes: by id, in the file's order.
        group_of: code -> group. Codes of a group are correlated: for one cause
            only the one that weighs most counts.
    """

    causes: Mapping[str, Cause]
    group_of: Mapping[str, str]

    @property
    def codes(self) -> frozenset[str]:
        """Every code that the knowledge base mentions."""
        mentioned = {code for cause in self.causes.values() for code in cause.weights}
        mentioned |= {code for cause in self.causes.values() for code in cause.absent}
        return frozenset(mentioned | set(self.group_of))


@cache
def load_causes() -> KnowledgeBase:
    """The shipped knowledge base.

    Raises:
        InputError: causes.toml has an unknown or a missing key.
    """
    return parse_causes(files("mlxdoctor").joinpath("causes.toml").read_text("utf-8"))


def parse_causes(text: str) -> KnowledgeBase:
    """A knowledge base from TOML text.

    Raises:
        InputError: the text is not TOML, or has an unknown or a missing key.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("causes.toml", f"is not valid TOML ({error})") from None
    if unknown := document.keys() - {"groups", "causes"}:
        raise InputError("causes.toml", f"has the unknown table {sorted(unknown)[0]!r}")
    group_of: dict[str, str] = {}
    for group, codes in document.get("groups", {}).items():
        for code in codes:
            if code in group_of:
                raise InputError("causes.toml", f"{code} is in two groups")
            group_of[code] = group
    causes = {name: _cause(name, table) for name, table in document.get("causes", {}).items()}
    return KnowledgeBase(causes, group_of)


def _cause(name: str, table: Mapping[str, Any]) -> Cause:
    if unknown := table.keys() - _CAUSE_KEYS - _OPTIONAL_KEYS:
        raise InputError("causes.toml", f"{name} has the unknown key {sorted(unknown)[0]!r}")
    if lacking := _CAUSE_KEYS - table.keys():
        raise InputError("causes.toml", f"{name} lacks the key {sorted(lacking)[0]!r}")
    weights = {code: float(weight) for code, weight in table.get("for", {}).items()}
    for code, weight in table.get("against", {}).items():
        if code in weights:
            raise InputError("causes.toml", f"{name}: {code} speaks both for and against it")
        weights[code] = -float(weight)
    return Cause(
        id=name,
        title=table["title"],
        summary=table["summary"],
        explanation=table["explanation"].strip(),
        remedy=table["remedy"].strip(),
        prior=float(table["prior"]),
        weights=weights,
        absent={code: -float(weight) for code, weight in table.get("absent", {}).items()},
        change=_change(name, table["change"]) if "change" in table else None,
        inject=tuple(table.get("inject", ())),
    )


def _change(name: str, table: Mapping[str, Any]) -> Change:
    operations = [one for one in _OPERATIONS if one in table]
    if "key" not in table or len(operations) != 1 or len(table) != 2:
        raise InputError(
            "causes.toml", f"{name}: a change has a key and one of {', '.join(_OPERATIONS)}"
        )
    return Change(table["key"], operations[0], table[operations[0]])
