"""From findings to ranked causes.

The score of a cause is its prior log-odds plus the weight of every finding that speaks for or
against it. Findings that stem from the same fact share a group and count once, by the strongest: of
equal weights the most severe, then the first that causes.toml lists. Effects that many causes bring
about count nothing where something else was found that explains them. A check that did not run
counts zero. The score orders causes, and is no probability.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxdoctor.causes import Cause, KnowledgeBase, code_of, holds, load_causes
from mlxdoctor.finding import Outcome, Severity
from mlxdoctor.verdict import CauseStatus, Confirmation, Coverage, NextCheck, Verdict

#: Decimals of a score: weights have two.
DIGITS = 3
#: Log-odds below which a cause is not worth a reader's time, and above which it is named (natural
#: logarithm): a hint against a small prior is no root cause.
MIN_SCORE = 0.0
#: How many causes a diagnosis lists at most.
MAX_CAUSES = 6
#: Log-odds from which a cause makes a run unhealthy without any error.
CROSSES = 4.0


@dataclass(frozen=True)
class Term:
    """One line of a score's arithmetic: the log-odds that a finding adds, and why so many.

    They are 0 where a stronger finding of its group counts; one without a group is its own.
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

    @property
    def is_nameable(self) -> bool:
        """Whether enough speaks for it to call it the root cause."""
        return self.confirmation == "confirmed" or self.score > MIN_SCORE

    def to_dict(self) -> dict[str, Any]:
        """The entry as the JSON report shows it: the cause by its id."""
        return {**vars(self), "cause": self.cause.id}


@dataclass(frozen=True)
class Judged:
    """What all outcomes together say of a run; no diagnosis where nothing is suspected.

    Attributes:
        answered: errors that speak for nothing but causes which others speak against.
    """

    verdict: Verdict
    diagnosis: tuple[Diagnosed, ...]
    coverage: tuple[Coverage, ...]
    answered: frozenset[str] = frozenset()


def judge(
    outcomes: Sequence[Outcome], knowledge: KnowledgeBase | None = None, *, whole: bool = True
) -> Judged:
    """Weigh what was found, what was seen to be sound, and what could not be looked at.

    Args:
        outcomes: of every check, those that did not run included.
        whole: whether every file of the run could be read: no run is healthy otherwise.
    """
    knowledge = knowledge or load_causes()
    ranked = rank(outcomes, knowledge)
    noted = severities(outcomes)
    suspicions = {code for code, severity in noted.items() if severity is not Severity.INFO}
    # What was measured to the contrary outweighs a warning, and an error that says nothing else.
    refuted = {
        listed.cause.id: listed.contradicting[0]
        for listed in ranked
        if listed.contradicting and listed.score <= MIN_SCORE
    }
    by_check = {outcome.check: outcome for outcome in outcomes}
    sought = {name: _sought(cause, by_check, noted) for name, cause in knowledge.causes.items()}
    # What was looked for and not found outweighs hints, but leaves no error unanswered.
    faint = {
        listed.cause.id: entry
        for listed in ranked
        if max(term.weight for term in listed.arithmetic) <= knowledge.tiers["hint"]
        and (entry := sought[listed.cause.id][0])
    }
    ranked = [listed for listed in ranked if listed.cause.id not in faint] or ranked
    held = {code for each in ranked if each.cause.id not in refuted for code in each.supporting}
    errors = {code for code, severity in noted.items() if severity is Severity.ERROR}
    answered = errors & ({code for each in ranked for code in each.supporting} - held)
    is_certain = bool(errors - answered)
    suspected = [
        listed
        for listed in ranked
        if suspicions & set(listed.supporting) and listed.cause.id not in {*refuted, *faint}
    ]
    learned = any(seen.learned for outcome in outcomes for seen in outcome.seen)
    if is_certain or any(_crosses(cause, suspicions) for cause in suspected):
        worthwhile = [cause for cause in ranked if cause.score >= MIN_SCORE]
        verdict, diagnosis = Verdict.UNHEALTHY, _model_first(worthwhile, errors) or ranked[:1]
    elif suspected:
        verdict, diagnosis = Verdict.SUSPECT, suspected
    else:
        verdict, diagnosis = Verdict.INCONCLUSIVE, []
    diagnosis = diagnosis[:MAX_CAUSES]
    is_named = verdict is Verdict.UNHEALTHY and diagnosis and diagnosis[0].is_nameable
    named = diagnosis[0].cause.id if is_named else None
    possible = {listed.cause.id: listed for listed in (*diagnosis, *suspected)}
    against = faint | refuted
    coverage = tuple(
        _covered(knowledge.causes[name], named, possible, against.get(name, entry), lacking)
        for name, (entry, lacking) in sought.items()
    )
    open_causes = sum(covered.status is CauseStatus.OPEN for covered in coverage)
    # What could not be looked for may be there: 27 of 401 faulty runs of the ward show nothing
    # until models run.
    if verdict is Verdict.INCONCLUSIVE and learned and whole and not open_causes:
        verdict = Verdict.HEALTHY
    return Judged(verdict, tuple(diagnosis), coverage, frozenset(answered))


def _model_first(ranked: list[Diagnosed], errors: set[str]) -> list[Diagnosed]:
    """What broke the model before what spoils only the report, where an error shows the former."""
    if not ranked or not ranked[0].cause.of_the_report:
        return ranked
    of_report = [listed for listed in ranked if listed.cause.of_the_report]
    explained = {code for listed in of_report for code in listed.supporting}
    others = errors - explained
    # Sorting is stable: otherwise the order stays.
    return sorted(
        ranked, key=lambda listed: listed in of_report or not others & set(listed.supporting)
    )


def _crosses(listed: Diagnosed, suspicions: set[str]) -> bool:
    """Whether warnings add up to a certainty. A single one is a warning, whatever it weighs."""
    counted = [term for term in listed.arithmetic if term.weight > 0 and term.code in suspicions]
    return listed.score >= CROSSES and len(counted) > 1


def _covered(
    cause: Cause,
    named: str | None,
    possible: Mapping[str, Diagnosed],
    entry: str,
    lacking: Iterable[str],
) -> Coverage:
    """What is known of a cause: `entry` speaks against it; without one, what `lacking` says."""
    if cause.id in possible:
        status = CauseStatus.NAMED if cause.id == named else CauseStatus.POSSIBLE
        return Coverage(cause.id, status, possible[cause.id].supporting[0])
    if entry and not cause.broad:
        return Coverage(cause.id, CauseStatus.RULED_OUT, entry)
    if entry or not cause.ruled_out_by:
        why = "nothing that was found speaks for it clearly"
        return Coverage(cause.id, CauseStatus.NO_SIGN, why)
    clause = next(filter(None, lacking), "its check did not run")
    why, _, needs = clause.partition("; ")
    return Coverage(cause.id, CauseStatus.OPEN, why, needs)


def _sought(
    cause: Cause, by_check: Mapping[str, Outcome], noted: Mapping[str, Severity]
) -> tuple[str, list[str]]:
    """The entry of which all was looked for and not found; or, as clauses, what each lacks."""
    lacking: list[str] = []
    for entries in cause.ruled_out_by:
        codes = [code_of(entry) for entry in entries]
        if slight := [code_of(entry) for entry in entries if holds(entry, noted)]:
            # Too little to suspect the cause, and not what a run without it has.
            lacking.append(f"there is a slight sign of it, {slight[0]}")
            continue
        unsought = [why for code in codes if (why := _unsought(code, by_check)) is not None]
        if not unsought:
            return ", ".join(codes), []
        lacking += unsought
    return "", lacking


def _unsought(code: str, by_check: Mapping[str, Outcome]) -> str | None:
    """Why a code could not be looked for, "" where nothing says; None where it was."""
    if (outcome := by_check.get(code.split(".", 1)[0])) is None:
        return ""
    return None if outcome.looked_for(code) else outcome.unsought.get(code) or outcome.reason


def severities(outcomes: Sequence[Outcome]) -> dict[str, Severity]:
    """Every code that was found, and how bad it is at its worst."""
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    findings.sort(key=lambda finding: finding.severity.rank)
    return {finding.code: finding.severity for finding in findings}


def rank(outcomes: Sequence[Outcome], knowledge: KnowledgeBase) -> list[Diagnosed]:
    """Every cause that some finding speaks for, by descending score."""
    present = severities(outcomes)
    by_check = {outcome.check: outcome for outcome in outcomes}
    judged = [
        _score(cause.seen_with(present), present, by_check, knowledge)
        for cause in knowledge.causes.values()
    ]
    supported = [each for each in judged if each.supporting]

    def order(listed: Diagnosed) -> tuple[float, bool, bool, str]:
        # Of equals, what spoils the model comes before what spoils the report of it, and what
        # follows from a setting or was computed again before what has effects alone.
        is_explained = any(map(knowledge.explains, listed.supporting))
        return -listed.score, listed.cause.of_the_report, not is_explained, listed.cause.id

    return sorted(supported, key=order)


def _score(
    cause: Cause,
    present: Mapping[str, Severity],
    by_check: Mapping[str, Outcome],
    knowledge: KnowledgeBase,
) -> Diagnosed:
    weights = {code: weight for code, weight in cause.weights.items() if code in present}
    is_explained = any(map(knowledge.explains, present)) and not any(
        knowledge.explains(code) and weight > 0 for code, weight in weights.items()
    )
    if is_explained:
        weights = {
            code: weight
            for code, weight in weights.items()
            if weight < 0 or not knowledge.is_effect(code)
        }
    # Of equals the one that is listed first.
    ordered = sorted(weights, key=lambda code: (-abs(weights[code]), -present[code].rank))
    strongest: dict[tuple[str, bool], str] = {}
    for code in ordered:
        strongest.setdefault((knowledge.group(code), weights[code] > 0), code)
    terms = []
    for code, weight in weights.items():
        group = knowledge.group(code)
        counted = strongest[group, weight > 0]
        is_counted = counted == code
        note = "found" if is_counted else f"found; counted with {counted}"
        terms.append(Term(code, group, weight if is_counted else 0.0, note))
    silent = [code for code in cause.weights if code not in present]
    return Diagnosed(
        cause=cause,
        score=round(cause.prior + sum(term.weight for term in terms), DIGITS),
        supporting=tuple(code for code, weight in weights.items() if weight > 0),
        contradicting=tuple(code for code, weight in weights.items() if weight < 0),
        unknown=tuple(code for code in silent if _unsought(code, by_check) is not None),
        arithmetic=tuple(terms),
    )


def unlocks_most(coverage: Iterable[Coverage]) -> NextCheck | None:
    """What would let most of the open causes be looked for; None where nothing can be provided."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for covered in coverage:
        # What nobody can provide is no advice.
        if covered.status is CauseStatus.OPEN and covered.needs:
            lacking.setdefault((covered.why, covered.needs), []).append(covered.cause)
    if not lacking:
        return None
    (why, how), settles = max(lacking.items(), key=lambda item: len(item[1]))
    return NextCheck(why, how, tuple(settles))
