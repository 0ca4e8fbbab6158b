"""What the gate found, as every output format is given it.

What the policy made of a report's findings stands beside it, in the findings' order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from mlxdoctor.finding import Finding
from mlxdoctor.report import Report


class ItemStatus(StrEnum):
    """What became of one adapter or run. The order is that of the exit codes' precedence."""

    PASSED = "passed"
    FAILED = "failed"
    UNUSABLE = "unusable"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class GatedFinding:
    """A finding and what the policy made of it.

    Attributes:
        finding: the finding.
        ruling: "fails" the item; "noted" only; or "suppressed".
        suppressed_by: "ignore" or "baseline"; None where it is not suppressed.
        reason: the ignore's reason; "" where there is none.
    """

    finding: Finding
    ruling: Literal["fails", "noted", "suppressed"]
    suppressed_by: Literal["ignore", "baseline"] | None = None
    reason: str = ""


@dataclass(frozen=True)
class GateItem:
    """One adapter or run.

    Attributes:
        path: as the user wrote it, or as the glob found it.
        status: what became of it.
        reasons: why it did not pass, a sentence each; empty where it passed.
        report: its report; None where it could not be examined.
        findings: every finding of the report, worst first.
        seconds: how long it took.
        suspicion: of an item that passed although its run is suspect: what is suspected.
        unseen: of an item that passed: what its files can't tell, and what it takes, as clauses.
        let_through: codes of errors that the policy's own rules let through.
    """

    path: str
    status: ItemStatus
    reasons: tuple[str, ...]
    report: Report | None
    findings: tuple[GatedFinding, ...]
    seconds: float
    suspicion: str = ""
    unseen: tuple[str, ...] = ()
    let_through: tuple[str, ...] = ()

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail it, worst first."""
        return [gated.finding for gated in self.findings if gated.ruling == "fails"]


@dataclass(frozen=True)
class GateResult:
    """All of it, in the order that was asked for.

    Attributes:
        items: one for each adapter or run.
        policy: the file the policy was read from, None for the defaults.
        notices: what is wrong with the policy itself: suppressions that suppress nothing, or
            that have expired; a sentence each.
        unfinished: paths that were not examined, because the work was interrupted.
    """

    items: tuple[GateItem, ...]
    policy: str | None
    notices: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
