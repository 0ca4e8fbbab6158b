"""Which findings are symptoms of training, and whether two runs have the same.

What a configuration or a data set says goes away when it is edited, cured or not. So only
findings on what training *did* count here, and findings that stem from one fact (a group
of the knowledge base) are one sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlxdoctor.causes import Cause, KnowledgeBase
from mlxdoctor.check import Check, discover
from mlxdoctor.finding import Finding, Outcome, Severity, Status


def symptom_checks() -> tuple[Check, ...]:
    """The checks of what a run did, whose findings a rerun can have or lack."""
    return tuple(one for one in discover() if one.rerun_symptom)


@dataclass(frozen=True)
class Signs:
    """The symptoms of a run by group, and the checks that could have found more.

    Attributes:
        severities: group (or code, where it has none) -> the worst of it.
        looked: names of the checks that looked.
        codes: the codes behind them.
    """

    severities: Mapping[str, Severity]
    looked: frozenset[str]
    codes: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """Every sign."""
        return frozenset(self.severities)

    @property
    def errors(self) -> frozenset[str]:
        """The signs that are errors."""
        return frozenset(k for k, one in self.severities.items() if one is Severity.ERROR)


def signs(
    findings: Iterable[tuple[str, str]], looked: Iterable[str], knowledge: KnowledgeBase
) -> Signs:
    """The signs among (code, severity) pairs of `symptom_checks`; notes are none."""
    worst: dict[str, Severity] = {}
    codes: set[str] = set()
    configured = {name for name, group in knowledge.groups.items() if group.configured}
    for code, severity in findings:
        group, level = knowledge.group(code), Severity(severity)
        if group in configured or level is Severity.INFO:
            continue
        codes.add(code)
        if group not in worst or level.rank > worst[group].rank:
            worst[group] = level
    return Signs(worst, frozenset(looked), frozenset(codes))


def recorded_signs(outcomes: Iterable[Outcome], knowledge: KnowledgeBase) -> Signs:
    """The signs of the run that was examined."""
    names = {one.name for one in symptom_checks()}
    every = [one for one in outcomes if one.check in names]
    found = [(one.code, one.severity.value) for outcome in every for one in outcome.findings]
    looked = [one.check for one in every if one.status in (Status.PASSED, Status.FOUND)]
    return signs(found, looked, knowledge)


def signs_of(cause: Cause, recorded: Signs, knowledge: KnowledgeBase) -> frozenset[str]:
    """The recorded signs that speak for a cause: the errors among them, if there are any."""
    own = frozenset(knowledge.group(code) for code, w in cause.weights.items() if w > 0)
    return (own & recorded.errors) or (own & recorded.all)


def key_sign(cause: Cause, recorded: Signs, knowledge: KnowledgeBase) -> str | None:
    """The recorded sign that speaks for a cause most; None where none does."""
    wanted = signs_of(cause, recorded, knowledge)
    weights = {
        code: weight
        for code, weight in cause.weights.items()
        if code in recorded.codes and knowledge.group(code) in wanted
    }
    code = max(weights, key=lambda one: weights[one], default=None)
    return knowledge.group(code) if code is not None else None


def likeness(recorded: Signs, other: Signs) -> float:
    """Codes that both runs have, over those that either has: 1 where they are the same."""
    either = recorded.codes | other.codes
    return len(recorded.codes & other.codes) / len(either) if either else 1.0


def checks_behind(sign: str, knowledge: KnowledgeBase) -> frozenset[str]:
    """The checks that can report a sign."""
    codes = knowledge.groups[sign].codes if sign in knowledge.groups else (sign,)
    return frozenset(code.split(".", 1)[0] for code in codes)


def coverage(recorded: Signs, other: Signs) -> float:
    """The share of the recorded errors that the other run has as well; 1 where there are none."""
    if not recorded.errors:
        return 1.0
    return len(recorded.errors & other.all) / len(recorded.errors)


def foreign(recorded: Signs, other: Signs, knowledge: KnowledgeBase) -> frozenset[str]:
    """Errors of the other run that the recorded one has not, although they were looked for."""
    gradual = {name for name, group in knowledge.groups.items() if group.gradual}
    return frozenset(
        sign
        for sign in other.errors - recorded.all - gradual
        if checks_behind(sign, knowledge) <= recorded.looked
    )


def outcomes_of(report: Mapping[str, Any]) -> tuple[Outcome, ...]:
    """The outcomes of the checks, back from a report's data."""
    return tuple(
        Outcome(
            check=one["check"],
            status=Status(one["status"]),
            reason=one["reason"],
            findings=tuple(_finding(item) for item in one["findings"]),
        )
        for one in report["outcomes"]
    )


def _finding(item: Mapping[str, Any]) -> Finding:
    measured = {k: tuple(v) if isinstance(v, list) else v for k, v in item["measured"].items()}
    return Finding(
        code=item["code"],
        severity=Severity(item["severity"]),
        message=item["message"],
        measured=measured,
        onset=item["onset"],
    )
