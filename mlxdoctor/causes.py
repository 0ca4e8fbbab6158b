"""The knowledge base in causes.toml: causes, and what speaks for and against each."""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain
from typing import Any

from mlxdoctor.finding import Severity
from mlxdoctor.safety.errors import InputError
from mlxdoctor.tables import record, shipped_text

FILE = "causes.toml"
#: The weight of a finding for a cause: three strengths, or evidence against the cause.
TIERS = ("proof", "strong", "hint", "against")
#: The score of a cause before any finding, if causes.toml states none (log-odds).
PRIOR = -1.0
#: What of a cause `called` may replace; of the change, that there is one.
_TEXTS = {"title", "summary", "explanation", "remedy", "beside_change", "no_experiment", "change"}
_OPERATIONS = ("set", "divide", "multiply")


def holds(entry: str, severities: Mapping[str, Severity]) -> bool:
    """Whether an entry, such as `a-check.copies:error`, applies to findings of these severities."""
    code, least = _split(entry)
    return code in severities and severities[code].rank >= least.rank


def code_of(entry: str) -> str:
    """The code of an entry, without the severity."""
    return _split(entry)[0]


@cache  # A gate splits every entry for every adapter.
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
    """

    key: str
    operation: str
    value: Any
    advised_only: bool = False


@dataclass(frozen=True)
class Cause:
    """A root cause, as data: the head of causes.toml says what each key is for.

    Attributes:
        id: its key in causes.toml, and its name in reports.
        weights: entry -> log-odds that the finding adds; negative for evidence against the cause.
        proof: what a proof adds.
    """

    id: str
    title: str
    summary: str
    explanation: str
    remedy: str
    prior: float = PRIOR
    weights: Mapping[str, float] = field(default_factory=dict)
    proof: float = math.inf
    ruled_out_by: tuple[tuple[str, ...], ...] = ()
    broad: bool = False
    change: Change | None = None
    inject: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    no_experiment: str = ""
    shown_by_diagnosis: bool = False
    only_in_code: bool = False
    changes_losses: bool = False
    of_the_report: bool = False
    finding_says: bool = False
    beside_change: str = ""
    called: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def seen_with(self, severities: Mapping[str, Severity]) -> "Cause":
        """The cause with one weight for each code, given the severities of the findings by code.

        It has the texts of the first entry in `called` that applies; beside a proof, of a proof or
        of what leaves nothing to change.
        """
        weights: dict[str, float] = {}
        for entry, weight in self.weights.items():
            code = code_of(entry)
            is_there = code not in severities or holds(entry, severities)
            if is_there and (weight < 0 or code not in weights):
                weights[code] = weight
        most = max((weight for code, weight in weights.items() if code in severities), default=0.0)
        called = (
            texts
            for entry, texts in self.called.items()
            if holds(entry, severities)
            and (most < self.proof or self.weights.get(entry) == most or "change" in texts)
        )
        texts: Mapping[str, Any] = next(called, {})
        return replace(self, weights=weights, **texts)


@dataclass(frozen=True)
class Group:
    """Findings that stem from one fact: only the one with the largest weight counts for a cause.

    Attributes:
        codes: the codes of the findings.
        gradual: whether the fact has degrees, so that a shorter run may show more of it.
        effect: whether many causes bring the fact about.
        explains: whether it says what brought effects about.
    """

    codes: tuple[str, ...]
    gradual: bool = False
    effect: bool = False
    explains: bool = False


@dataclass(frozen=True)
class KnowledgeBase:
    """All causes by id and all groups of findings by name, in the file's order.

    Attributes:
        tiers: what each is worth, in log-odds.
    """

    causes: Mapping[str, Cause]
    groups: Mapping[str, Group]
    tiers: Mapping[str, float]

    @cached_property
    def _group_of(self) -> Mapping[str, str]:
        return {code: name for name, group in self.groups.items() for code in group.codes}

    def group(self, code: str) -> str:
        """The name of the group with a code; the code itself if no group has it."""
        return self._group_of.get(code, code)

    def is_effect(self, code: str) -> bool:
        """Whether many causes bring about what this code says."""
        return code in self._group_of and self.groups[self._group_of[code]].effect

    def explains(self, code: str) -> bool:
        """Whether this code says what brought effects about."""
        return code in self._group_of and self.groups[self._group_of[code]].explains

    @property
    def codes(self) -> frozenset[str]:
        """Every code that the knowledge base mentions."""
        codes = set(self._group_of)
        for cause in self.causes.values():
            codes.update(map(code_of, chain(cause.weights, *cause.ruled_out_by, cause.leave_out)))
        return frozenset(codes)

    def require_known(self, codes: Iterable[str]) -> None:
        """See that it mentions only these codes, those of all checks; loading it imports no check.

        Raises:
            InputError: it mentions another one.
        """
        if unknown := ", ".join(sorted(self.codes.difference(codes))):
            raise InputError(FILE, f"no check reports {unknown}", "see `mlxdoctor checks`")


@cache
def load_causes() -> KnowledgeBase:
    """The shipped knowledge base."""
    return parse_causes(shipped_text("mlxdoctor", FILE))


def parse_causes(text: str) -> KnowledgeBase:
    """A knowledge base from TOML text.

    Raises:
        InputError: the text has an unknown or a missing key.
    """
    document = tomllib.loads(text)
    if unknown := document.keys() - {"groups", "causes", "tiers"}:
        raise InputError(FILE, f"has the unknown table {sorted(unknown)[0]!r}")
    groups = {
        name: record(Group, FILE, name, {"codes": table} if isinstance(table, list) else table)
        for name, table in document.get("groups", {}).items()
    }
    codes = [code for group in groups.values() for code in group.codes]
    if repeated := next((code for code in codes if codes.count(code) > 1), None):
        raise InputError(FILE, f"{repeated} is in two groups")
    tiers = document.get("tiers", {})
    if tiers.keys() != set(TIERS):
        raise InputError(FILE, f"tiers has the keys {', '.join(TIERS)}")
    causes = {
        name: _cause(name, table, tiers) for name, table in document.get("causes", {}).items()
    }
    return KnowledgeBase(causes, groups, tiers)


def _cause(name: str, table: Mapping[str, Any], tiers: Mapping[str, float]) -> Cause:
    weights: dict[str, float] = {}
    for tier in TIERS:
        for entry in table.get(tier, ()):
            if entry in weights:
                raise InputError(FILE, f"{name}: {entry} has two weights")
            if entry.partition(":")[2] not in ("", *Severity):
                raise InputError(FILE, f"{name}: {entry} names an unknown severity")
            weights[entry] = tiers[tier]
    called: dict[str, Mapping[str, Any]] = {}
    for entries, texts in table.get("called", {}).items():
        if not weights.keys() >= {*entries.split()} or not texts.keys() <= _TEXTS:
            raise InputError(FILE, f"{name}: {entries} has no weight, or replaces an unknown text")
        # What leaves nothing to change says itself what to do.
        unchanged = {"change": None, "finding_says": False} if "change" in texts else {}
        own = {**texts, **unchanged}
        called |= dict.fromkeys(entries.split(), own)
    ruled_out_by = tuple(
        (entries,) if isinstance(entries, str) else tuple(entries)
        for entries in table.get("ruled_out_by", ())
    )
    change = _change(name, table["change"]) if "change" in table else None
    rest = {key: value for key, value in table.items() if key not in TIERS}
    parsed = {"weights": weights, "proof": tiers["proof"], "change": change, "called": called}
    return record(Cause, FILE, name, rest, id=name, ruled_out_by=ruled_out_by, **parsed)


def _change(name: str, table: Mapping[str, Any]) -> Change:
    operations = table.keys() & set(_OPERATIONS)
    if "key" not in table or len(operations) != 1:
        raise InputError(FILE, f"{name}: a change has a key and one of {', '.join(_OPERATIONS)}")
    (operation,) = operations
    rest = {key: value for key, value in table.items() if key != operation}
    parsed = {"operation": operation, "value": table[operation]}
    return record(Change, FILE, f"the change of {name}", rest, **parsed)
