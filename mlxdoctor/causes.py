"""The knowledge base in causes.toml: causes, and what speaks for and against each."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any

from mlxdoctor.safety.errors import InputError
from mlxdoctor.tables import record, shipped, tables_in

FILE = "causes.toml"
#: How a finding may speak for a cause or against it, by what it is worth.
TIERS = ("proof", "strong", "hint", "against")
#: The score of a cause before anything was seen, where it states none (log-odds).
PRIOR = -1.0
#: What a finding may put in other words.
_WORDS = {"title", "summary", "explanation", "remedy", "beside_change"}
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
    prior: float = PRIOR
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
    return _knowledge(shipped("mlxdoctor", FILE))


def parse_causes(text: str) -> KnowledgeBase:
    """A knowledge base from TOML text.

    Raises:
        InputError: the text is not TOML, or has an unknown or a missing key.
    """
    return _knowledge(tables_in(text, FILE))


def _knowledge(document: Mapping[str, Any]) -> KnowledgeBase:
    if unknown := document.keys() - {"groups", "causes", "calibration", "tiers"}:
        raise InputError(FILE, f"has the unknown table {sorted(unknown)[0]!r}")
    groups = {name: _group(name, table) for name, table in document.get("groups", {}).items()}
    codes = [code for group in groups.values() for code in group.codes]
    if twice := next((code for code in codes if codes.count(code) > 1), None):
        raise InputError(FILE, f"{twice} is in two groups")
    tiers = document.get("tiers", {})
    if tiers.keys() != set(TIERS):
        raise InputError(FILE, f"tiers has the keys {', '.join(TIERS)}")
    causes = {
        name: _cause(name, table, tiers) for name, table in document.get("causes", {}).items()
    }
    stated = document.get("calibration")
    calibration = None if stated is None else record(Calibration, FILE, "calibration", stated)
    return KnowledgeBase(causes, groups, calibration)


def _group(name: str, table: Mapping[str, Any] | list[str]) -> Group:
    stated = {"codes": table} if isinstance(table, list) else table
    return record(Group, FILE, name, stated)


def _cause(name: str, table: Mapping[str, Any], tiers: Mapping[str, float]) -> Cause:
    weights: dict[str, float] = {}
    for tier in TIERS:
        for code in table.get(tier, ()):
            if code in weights:
                raise InputError(FILE, f"{name}: {code} speaks twice")
            weights[code] = tiers[tier]
    for code, words in table.get("called", {}).items():
        if code not in weights or not words.keys() <= _WORDS:
            raise InputError(FILE, f"{name}: {code} is no finding of it, or says too much")
    ruled_out_by = tuple(
        (codes,) if isinstance(codes, str) else tuple(codes)
        for codes in table.get("ruled_out_by", ())
    )
    change = _change(name, table["change"]) if "change" in table else None
    stated = {key: value for key, value in table.items() if key not in TIERS}
    made = {"weights": weights, "ruled_out_by": ruled_out_by, "change": change}
    return record(Cause, FILE, name, stated, id=name, **made)


def _change(name: str, table: Mapping[str, Any]) -> Change:
    operations = table.keys() & set(_OPERATIONS)
    if "key" not in table or len(operations) != 1:
        known = ", ".join(_OPERATIONS)
        raise InputError(FILE, f"{name}: a change has a key and one of {known}")
    (operation,) = operations
    stated = {key: value for key, value in table.items() if key != operation}
    made = {"operation": operation, "value": table[operation]}
    return record(Change, FILE, f"the change of {name}", stated, **made)
