"""The knowledge base in causes.toml: causes, and what speaks for and against each."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import chain
from typing import Any

from mlxdoctor.safety.errors import InputError

_CAUSE_KEYS = {"title", "summary", "explanation", "remedy"}
#: How a finding may speak for a cause or against it, by what it is worth.
TIERS = ("proof", "strong", "hint", "against")
#: The score of a cause before anything was seen, where it states none (log-odds).
PRIOR = -1.0
#: Keys of a cause that are taken as they stand; see `Cause`.
_FACTS = {
    "leave_out",
    "no_experiment",
    "only_in_code",
    "changes_losses",
    "of_the_report",
    "finding_says",
    "beside_change",
}
_OPTIONAL_KEYS = {
    *("prior", *TIERS, "change", "inject", "ruled_out_by", "called"),
    *_FACTS,
}
#: What a finding may put in other words.
_WORDS = {"title", "summary", "explanation", "remedy", "beside_change"}
_GROUP_KEYS = {"codes", "configured", "gradual"}
_OPERATIONS = ("set", "divide", "multiply")


@dataclass(frozen=True)
class Change:
    """One change to a training configuration that would cure a cause.

    Attributes:
        key: the configuration key; dots enter nested tables.
        operation: "set", "divide" or "multiply".
        value: the new value, or the factor.
        advised_only: whether it is a guess unless a finding says the value to set.
    """

    key: str
    operation: str
    value: Any
    advised_only: bool = False


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
        ruled_out_by: sets of codes, any one of which rules the cause out where nothing speaks
            for it: each of the set was looked for, and none was found.
        change: the configuration change that cures it; None where no key does.
        inject: faults of the reference trainer that re-create it where it lies in a run's
            own trainer, the likeliest first.
        leave_out: finding -> what it is about, of rows without which the cause is cured.
        no_experiment: why no experiment can show it, as a clause; empty where one can.
        only_in_code: whether only a trainer's code can have it, so that it is not at work
            where a sound trainer fails as well.
        changes_losses: whether in a trainer's code it changes the losses from the first
            steps on.
        of_the_report: whether it spoils what is reported and not the model: what else
            failed has its own cause.
        finding_says: whether what to do depends on the finding that speaks for it most, which
            says so in the remedy's place.
        beside_change: what else to do, where the change is shown with its numbers; the remedy
            where it is empty.
        called: finding -> words that take the place of the cause's own where it was made.
    """

    id: str
    title: str
    summary: str
    explanation: str
    remedy: str
    prior: float
    weights: Mapping[str, float] = field(default_factory=dict)
    ruled_out_by: tuple[tuple[str, ...], ...] = ()
    change: Change | None = None
    inject: tuple[str, ...] = ()
    leave_out: Mapping[str, str] = field(default_factory=dict)
    no_experiment: str = ""
    only_in_code: bool = False
    changes_losses: bool = False
    of_the_report: bool = False
    finding_says: bool = False
    beside_change: str = ""
    called: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def called_by(self, found: Container[str]) -> Cause:
        """The cause in the words of the first of its findings that was made and has some."""
        words: Mapping[str, Any] = next((w for code, w in self.called.items() if code in found), {})
        return replace(self, **words)

    @property
    def words(self) -> dict[str, str]:
        """What it is in words, as the JSON report shows it. Written by us, in Markdown."""
        names = ("title", "summary", "explanation", "remedy")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Group:
    """Findings that stem from one fact: for one cause only the one that weighs most counts.

    Attributes:
        codes: of the findings.
        configured: whether it is only read off the configuration.
        gradual: whether it comes by degrees, so that a shorter run may have more of it.
    """

    codes: tuple[str, ...]
    configured: bool = False
    gradual: bool = False


@dataclass(frozen=True)
class Calibration:
    """What turns the scores of causes into probabilities (reports/calibration.md).

    Attributes:
        slope: how much of a score counts: 1 where log-odds are what they say.
        other: the score of "none of these".
    """

    slope: float
    other: float


@dataclass(frozen=True)
class KnowledgeBase:
    """All causes, and the groups of findings, by id in the file's order.

    Attributes:
        calibration: None where scores are not probabilities.
    """

    causes: Mapping[str, Cause]
    groups: Mapping[str, Group]
    calibration: Calibration | None = None

    @cached_property
    def _group_of(self) -> Mapping[str, str]:
        return {code: name for name, group in self.groups.items() for code in group.codes}

    def group(self, code: str) -> str:
        """The group that a finding is in; its own code where it is in none."""
        return self._group_of.get(code, code)

    @property
    def codes(self) -> frozenset[str]:
        """Every code that the knowledge base mentions."""
        of_causes = (
            code
            for cause in self.causes.values()
            for code in (
                *cause.weights,
                *chain.from_iterable(cause.ruled_out_by),
                *cause.leave_out,
            )
        )
        return frozenset((*of_causes, *self._group_of))


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
    if unknown := document.keys() - {"groups", "causes", "calibration", "tiers"}:
        raise InputError("causes.toml", f"has the unknown table {sorted(unknown)[0]!r}")
    groups = {name: _group(name, table) for name, table in document.get("groups", {}).items()}
    codes = [code for group in groups.values() for code in group.codes]
    if twice := next((code for code in codes if codes.count(code) > 1), None):
        raise InputError("causes.toml", f"{twice} is in two groups")
    tiers = _tiers(document.get("tiers", {}))
    causes = {
        name: _cause(name, table, tiers) for name, table in document.get("causes", {}).items()
    }
    return KnowledgeBase(causes, groups, _calibration(document.get("calibration")))


def _tiers(table: Mapping[str, Any]) -> Mapping[str, float]:
    if table.keys() != set(TIERS):
        raise InputError("causes.toml", f"tiers has the keys {', '.join(TIERS)}")
    return {tier: float(worth) for tier, worth in table.items()}


def _calibration(table: Mapping[str, Any] | None) -> Calibration | None:
    if table is None:
        return None
    if table.keys() != {"slope", "other"}:
        raise InputError("causes.toml", "calibration has the keys 'slope' and 'other'")
    return Calibration(float(table["slope"]), float(table["other"]))


def _group(name: str, table: Mapping[str, Any] | list[str]) -> Group:
    stated = {"codes": table} if isinstance(table, list) else table
    if unknown := stated.keys() - _GROUP_KEYS:
        raise InputError("causes.toml", f"{name} has the unknown key {sorted(unknown)[0]!r}")
    if "codes" not in stated:
        raise InputError("causes.toml", f"{name} lacks the key 'codes'")
    return Group(**{**stated, "codes": tuple(stated["codes"])})


def _cause(name: str, table: Mapping[str, Any], tiers: Mapping[str, float]) -> Cause:
    if unknown := table.keys() - _CAUSE_KEYS - _OPTIONAL_KEYS:
        raise InputError("causes.toml", f"{name} has the unknown key {sorted(unknown)[0]!r}")
    if lacking := _CAUSE_KEYS - table.keys():
        raise InputError("causes.toml", f"{name} lacks the key {sorted(lacking)[0]!r}")
    weights: dict[str, float] = {}
    for tier in TIERS:
        for code in table.get(tier, ()):
            if code in weights:
                raise InputError("causes.toml", f"{name}: {code} speaks twice")
            weights[code] = tiers[tier]
    called = table.get("called", {})
    for code, words in called.items():
        if code not in weights or not words.keys() <= _WORDS:
            raise InputError("causes.toml", f"{name}: {code} is no finding of it, or says too much")
    return Cause(
        id=name,
        title=table["title"],
        summary=table["summary"],
        explanation=table["explanation"].strip(),
        remedy=table["remedy"].strip(),
        prior=float(table.get("prior", PRIOR)),
        weights=weights,
        change=_change(name, table["change"]) if "change" in table else None,
        inject=tuple(table.get("inject", ())),
        ruled_out_by=tuple(
            (one,) if isinstance(one, str) else tuple(one) for one in table.get("ruled_out_by", ())
        ),
        called=called,
        **{key: table[key] for key in _FACTS & table.keys()},
    )


def _change(name: str, table: Mapping[str, Any]) -> Change:
    operations = [one for one in _OPERATIONS if one in table]
    known = {"key", "advised_only", *_OPERATIONS}
    if "key" not in table or len(operations) != 1 or not table.keys() <= known:
        raise InputError(
            "causes.toml", f"{name}: a change has a key and one of {', '.join(_OPERATIONS)}"
        )
    (operation,) = operations
    return Change(table["key"], operation, table[operation], table.get("advised_only", False))
