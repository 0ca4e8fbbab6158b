"""The answer in one word, and the checks that it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from mlxdoctor.finding import Outcome, Severity, Status

#: The check looked: what it did not report is not there.
LOOKED = frozenset({Status.PASSED, Status.FOUND})


class Verdict(StrEnum):
    """What is said of a run."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    INCONCLUSIVE = "inconclusive"


def verdict(outcomes: Iterable[Outcome]) -> Verdict:
    """Unhealthy with any error; inconclusive where no decisive check looked."""
    outcomes = tuple(outcomes)
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    if any(finding.severity is Severity.ERROR for finding in findings):
        return Verdict.UNHEALTHY
    if not any(one.decisive and one.status in LOOKED for one in outcomes):
        return Verdict.INCONCLUSIVE
    return Verdict.HEALTHY
