"""Which findings are symptoms of training, and whether two runs have the same.

What a configuration or a data set says goes away when it is edited, cured or not. So only
findings on what training *did* count here, and findings that stem from one fact (a group
of the knowledge base) are one sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlxdoctor.causes import Cause, KnowledgeBase
from mlxdoctor.check import Check, discover
from mlxdoctor.finding import Outcome, Severity, Status


def symptom_checks() -> tuple[Check, ...]:
    """The checks of what a run did, whose findings a rerun can have or lack."""
    return tuple(one for one in discover() if one.rerun_symptom)


@dataclass(frozen=True)
class Signs:
    """The symptoms of a run, and the checks that could have found more.

    A sign is a group of findings, or the code of a finding that is in none.

    Attributes:
        codes: finding -> its severity.
        looked: names of the checks that looked.
        knowledge: the groups.
    """

    codes: Mapping[str, Severity]
    looked: frozenset[str]
    knowledge: KnowledgeBase

    @property
    def all(self) -> frozenset[str]:
        """Every sign."""
        return frozenset(map(self.knowledge.group, self.codes))

    @property
    def errors(self) -> frozenset[str]:
        """The signs that are errors."""
        found = (code for code, severity in self.codes.items() if severity is Severity.ERROR)
        return frozenset(map(self.knowledge.group, found))

    def of(self, cause: Cause) -> frozenset[str]:
        """The signs that speak for a cause: the errors among them, if there are any."""
        speaking = (code for code, weight in cause.weights.items() if weight > 0)
        own = frozenset(map(self.knowledge.group, speaking))
        return (own & self.errors) or (own & self.all)

    def keys(self, cause: Cause) -> frozenset[str]:
        """Those that speak for a cause at least half as much as the weightiest of them."""
        wanted, group = self.of(cause), self.knowledge.group
        weights = {c: w for c, w in cause.weights.items() if c in self.codes and group(c) in wanted}
        most = max(weights.values(), default=0.0)
        return frozenset(group(code) for code, weight in weights.items() if 2 * weight >= most)

    def likeness(self, other: Signs) -> float:
        """Codes that both runs have, over those that either has: 1 where they are the same."""
        mine, theirs = self.codes.keys(), other.codes.keys()
        return len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0

    def coverage(self, other: Signs) -> float:
        """The share of the errors that the other run has as well; 1 where there are none."""
        return len(self.errors & other.all) / len(self.errors) if self.errors else 1.0

    def foreign(self, other: Signs) -> frozenset[str]:
        """Errors of the other run that this one has not, although they were looked for."""
        groups = self.knowledge.groups
        return frozenset(
            sign
            for sign in other.errors - self.all
            if not (sign in groups and groups[sign].gradual)
            and self._checks_of(sign) <= self.looked
        )

    def _checks_of(self, sign: str) -> frozenset[str]:
        groups = self.knowledge.groups
        codes = groups[sign].codes if sign in groups else (sign,)
        return frozenset(code.split(".", 1)[0] for code in codes)


def signs(
    findings: Iterable[tuple[str, str]], looked: Iterable[str], knowledge: KnowledgeBase
) -> Signs:
    """The signs among (code, severity) pairs of `symptom_checks`; notes are none."""
    codes: dict[str, Severity] = {}
    for code, severity in findings:
        group, level = knowledge.groups.get(knowledge.group(code)), Severity(severity)
        if (group is None or not group.configured) and level is not Severity.INFO:
            codes[code] = max(level, codes.get(code, level), key=lambda one: one.rank)
    return Signs(codes, frozenset(looked), knowledge)


def recorded_signs(outcomes: Iterable[Outcome], knowledge: KnowledgeBase) -> Signs:
    """The signs of the run that was examined."""
    names = {one.name for one in symptom_checks()}
    every = [one for one in outcomes if one.check in names]
    found = [(one.code, one.severity.value) for outcome in every for one in outcome.findings]
    looked = [one.check for one in every if one.status in (Status.PASSED, Status.FOUND)]
    return signs(found, looked, knowledge)
