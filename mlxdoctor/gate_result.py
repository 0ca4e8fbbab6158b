"""What the gate found, as every output format is given it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from mlxdoctor.finding import Finding, Severity
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
        unexplained: reasons why it did not pass that are no finding, a sentence each.
        findings: every finding of the report, worst first.
        suspicion: of an item that passed although its run is suspect: what is suspected.
        unseen: of an item that passed: what its files can't tell, and what it takes, as clauses.
    """

    path: str
    status: ItemStatus
    unexplained: tuple[str, ...] = ()
    report: Report | None = None
    findings: tuple[GatedFinding, ...] = ()
    seconds: float = 0.0
    suspicion: str = ""
    unseen: tuple[str, ...] = ()

    @property
    def failing(self) -> list[Finding]:
        """The findings that fail it, worst first."""
        return [gated.finding for gated in self.findings if gated.ruling == "fails"]

    @property
    def noted(self) -> list[Finding]:
        """The findings that the policy lets pass, worst first."""
        return [gated.finding for gated in self.findings if gated.ruling == "noted"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it did not pass, a sentence each; empty where it passed."""
        failing = (f"{finding.code}: {finding.message}" for finding in self.failing)
        return (*failing, *self.unexplained)

    @property
    def let_through(self) -> tuple[str, ...]:
        """Codes of errors that the policy's own rules let through."""
        errors = {finding.code for finding in self.noted if finding.severity is Severity.ERROR}
        return tuple(sorted(errors))


@dataclass(frozen=True)
class GateResult:
    """All of it, in the order that was asked for.

    Attributes:
        policy: the file the policy was read from, None for the defaults.
        notices: what is wrong with the policy itself, a sentence each.
        unfinished: paths that were not examined, because the work was interrupted.
        hidden: the policy further up that would hold without that one; None where none would.
    """

    items: tuple[GateItem, ...]
    policy: str | None = None
    notices: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    hidden: str | None = None
