"""From findings to ranked causes.

The score of a cause is its prior log-odds plus the weight of every finding
that speaks for or against it. Findings that stem from the same fact share a
group and count once, by the strongest. A check that did not run counts zero:
what it could have said is listed as unknown. The score orders causes; it is
not a probability until it has been calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxdoctor.causes import Cause, KnowledgeBase, load_causes
from mlxdoctor.confirmation import Confirmation
from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.verdict import LOOKED, Verdict, verdict

#: Log-odds below which a cause is not worth a reader's time (natural logarithm).
MIN_SCORE = 0.0
#: How many causes a diagnosis lists at most.
MAX_CAUSES = 6


@dataclass(frozen=True)
class Term:
    """One line of a score's arithmetic.

    Attributes:
        code: the finding, or the finding that was looked for and not there.
        group: the group it shares with correlated findings, or its own code.
        weight: the log-odds it adds; 0 where a stronger one of its group counts.
        note: why the weight is what it is.
    """

    code: str
    group: str
    weight: float
    note: str


@dataclass(frozen=True)
class Diagnosed:
    """One cause with its score and the evidence on both sides, best first."""

    cause: Cause
    score: float
    supporting: tuple[str, ...]
    contradicting: tuple[str, ...]
    unknown: tuple[str, ...]
    arithmetic: tuple[Term, ...]
    confirmation: Confirmation | None = None

    def to_dict(self) -> dict[str, Any]:
        """The entry as the JSON report shows it."""
        return {
            "cause": self.cause.id,
            "score": round(self.score, 3),
            "supporting": list(self.supporting),
            "contradicting": list(self.contradicting),
            "unknown": list(self.unknown),
            "confirmation": self.confirmation,
            "arithmetic": [
                {"code": t.code, "group": t.group, "weight": round(t.weight, 3), "note": t.note}
                for t in self.arithmetic
            ],
        }


@dataclass(frozen=True)
class Unlocks:
    """The missing evidence that could change the order of causes most."""

    check: str
    reason: str
    swing: float


def diagnose(
    outcomes: Sequence[Outcome], knowledge: KnowledgeBase | None = None
) -> tuple[Diagnosed, ...]:
    """Rank the causes by what was found; empty where no finding is an error.

    Args:
        outcomes: of every check, those that did not run included.
        knowledge: the causes; the shipped ones by default.
    """
    knowledge = knowledge or load_causes()
    if verdict(outcomes) is not Verdict.UNHEALTHY:
        return ()
    ranked = rank(outcomes, knowledge)
    worthwhile = [one for one in ranked if one.score >= MIN_SCORE]
    return tuple((worthwhile or ranked[:1])[:MAX_CAUSES])


def rank(outcomes: Sequence[Outcome], knowledge: KnowledgeBase) -> list[Diagnosed]:
    """Every cause that some finding speaks for, by descending score."""
    present: dict[str, Finding] = {}
    for outcome in outcomes:
        for finding in outcome.findings:
            present.setdefault(finding.code, finding)
    looked = {outcome.check for outcome in outcomes if outcome.status in LOOKED}
    scored = (_score(cause, present, looked, knowledge) for cause in knowledge.causes.values())
    supported = [one for one in scored if one.supporting]
    return sorted(supported, key=lambda one: (-one.score, one.cause.id))


def _score(
    cause: Cause, present: Mapping[str, Finding], looked: set[str], knowledge: KnowledgeBase
) -> Diagnosed:
    terms: list[Term] = []
    strongest: dict[tuple[str, bool], tuple[str, float]] = {}
    for code, weight in cause.weights.items():
        if code not in present:
            continue
        key = (knowledge.group(code), weight > 0)
        if key not in strongest or abs(weight) > abs(strongest[key][1]):
            strongest[key] = (code, weight)
    for code, weight in cause.weights.items():
        if code not in present:
            continue
        group = knowledge.group(code)
        counted = strongest[group, weight > 0][0]
        if counted == code:
            terms.append(Term(code, group, weight, "found"))
        else:
            terms.append(Term(code, group, 0.0, f"found; counted with {counted}"))
    for code, weight in cause.absent.items():
        if code not in present and code.split(".", 1)[0] in looked:
            terms.append(Term(code, code, weight, "looked for, not found"))
    return Diagnosed(
        cause=cause,
        score=cause.prior + sum(term.weight for term in terms),
        supporting=tuple(c for c, w in cause.weights.items() if w > 0 and c in present),
        contradicting=tuple(
            [c for c, w in cause.weights.items() if w < 0 and c in present]
            + [t.code for t in terms if t.note.startswith("looked for")]
        ),
        unknown=tuple(
            code
            for code in dict.fromkeys((*cause.weights, *cause.absent))
            if code not in present and code.split(".", 1)[0] not in looked
        ),
        arithmetic=tuple(terms),
    )


def unlocks_most(outcomes: Sequence[Outcome], ranked: Sequence[Diagnosed]) -> Unlocks | None:
    """The skipped check whose answer could move the leading causes most."""
    unavailable = {
        one.check: one.reason
        for one in outcomes
        if one.status in (Status.SKIPPED, Status.INCONCLUSIVE) and one.reason
    }
    best: Unlocks | None = None
    for diagnosed in ranked[:3]:
        for code in diagnosed.unknown:
            check = code.split(".", 1)[0]
            weight = diagnosed.cause.weights.get(code, diagnosed.cause.absent.get(code, 0.0))
            swing = abs(weight)
            if check in unavailable and (best is None or swing > best.swing):
                best = Unlocks(check, unavailable[check], swing)
    return best
