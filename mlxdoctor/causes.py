"""The knowledge base in causes.toml: causes, and what speaks for and against each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any

from mlxdoctor.finding import Severity
from mlxdoctor.safety.errors import InputError
from mlxdoctor.tables import record, shipped, tables_in

FILE = "causes.toml"
#: How strongly a finding speaks for a cause, or that it speaks against it.
TIERS = ("proof", "strong", "hint", "against")
#: The score of a cause before anything was seen, where it states none (log-odds).
PRIOR = -1.0
#: Texts of a cause that `called` may replace where a finding is present.
_WORDS = {"title", "summary", "explanation", "remedy", "beside_change"}
_OPERATIONS = ("set", "divide", "multiply")


def holds(entry: str, noted: Mapping[str, Severity]) -> bool:
    """Whether a finding is there, and as bad as an entry says: `a-check.copies:error`."""
    code, least = _split(entry)
    return code in noted and noted[code].rank >= least.rank


def code_of(entry: str) -> str:
    """The code that an entry is about."""
    return _split(entry)[0]


@cache  # a gate asks for every entry with every adapter
def _split(entry: str) -> tuple[str, Severity]:
    code, _, severity = entry.partition(":")
    return code, Severity(severity or Severity.INFO)


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
        id: its key in causes.toml, and its name in reports.
        title: a short sentence that names it.
        summary: what it does to a run, in one line.
        explanation: a paragraph for a person who meets it for the first time.
        remedy: what to do, in one or two sentences.
        prior: log-odds before anything was seen (natural logarithm).
        weights: entry -> log-odds that the finding adds; negative where it speaks against. An
            entry is a code, or a code and the least severity for which it counts:
            `a-check.copies:error`.
        ruled_out_by: sets of entries. Where nothing speaks for the cause, a set rules it out if
            all of its findings were looked for and none was found.
        change: the configuration change that cures it; None where no key does.
        inject: faults of the reference trainer that re-create it where it lies in a run's
            own trainer, the likeliest first.
        leave_out: code of a finding -> which rows it is about; a run without these rows is
            cured of the cause.
        no_experiment: why no experiment can show it, as a clause; empty where one can.
        shown_by_diagnosis: whether its proofs are facts, so that it needs no experiment.
        only_in_code: whether only a trainer's code can have it, so that it is not at work
            where a sound trainer fails as well.
        changes_losses: whether in a trainer's code it changes the losses from the first
            steps on.
        of_the_report: whether it spoils only the reported figures, not the model; other
            failures then have another cause.
        finding_says: whether the fix of the finding that speaks for it most is shown instead
            of the remedy.
        beside_change: what else to do where the change is shown with its numbers; if empty,
            the remedy is shown.
        called: entry -> texts that replace the cause's own where its finding is present.
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
    shown_by_diagnosis: bool = False
    only_in_code: bool = False
    changes_losses: bool = False
    of_the_report: bool = False
    finding_says: bool = False
    beside_change: str = ""
    called: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def seen_with(self, noted: Mapping[str, Severity]) -> Cause:
        """The cause as findings of these severities speak for it: one weight for each code.

        It has the words of the first of these findings that has some.
        """
        weights: dict[str, float] = {}
        for entry, weight in self.weights.items():
            code = code_of(entry)
            if code not in noted or holds(entry, noted):
                weights.setdefault(code, weight)
        called = (words for entry, words in self.called.items() if holds(entry, noted))
        words: Mapping[str, Any] = next(called, {})
        return replace(self, weights=weights, **words)

    @property
    def words(self) -> dict[str, str]:
        """Its texts in the JSON report, in Markdown as causes.toml has them."""
        names = ("title", "summary", "explanation", "remedy")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Group:
    """Findings that stem from one fact: for one cause only the one that weighs most counts.

    Attributes:
        codes: of the findings.
        configured: whether the fact is only read off the configuration.
        gradual: whether the fact has degrees, so that a shorter run may show more of it.
    """

    codes: tuple[str, ...]
    configured: bool = False
    gradual: bool = False


@dataclass(frozen=True)
class Calibration:
    """What turns the scores of causes into probabilities (reports/calibration.md).

    Attributes:
        slope: factor on every score; 1 where scores are true log-odds.
        other: the score of "none of these".
    """

    slope: float
    other: float


@dataclass(frozen=True)
class KnowledgeBase:
    """All causes by id and all groups of findings by name, in the file's order.

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
        """The name of the group that a finding is in; its own code where it is in none."""
        return self._group_of.get(code, code)

    @property
    def codes(self) -> frozenset[str]:
        """Every code that the knowledge base mentions."""
        of_causes = (
            code_of(entry)
            for cause in self.causes.values()
            for entry in (
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
            if code.partition(":")[2] not in ("", *Severity):
                raise InputError(FILE, f"{name}: {code} names no severity")
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
