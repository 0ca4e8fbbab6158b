"""What the gate found, as every output format is given it.

A format is a pure function of a `GateResult`. `report` is `Report.to_dict()`; what the policy
made of its findings stands beside it, by the finding's place in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal


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
        finding: `Finding.to_dict()`.
        ruling: "fails" the item; "noted" only; or "suppressed".
        suppressed_by: "ignore" or "baseline"; None where it is not suppressed.
        reason: the ignore's reason; "" where there is none.
    """

    finding: Mapping[str, Any]
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
        report: `Report.to_dict()`, None where it could not be examined.
        findings: every finding of the report, worst first.
        seconds: how long it took.
    """

    path: str
    status: ItemStatus
    reasons: tuple[str, ...]
    report: Mapping[str, Any] | None
    findings: tuple[GatedFinding, ...]
    seconds: float


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
