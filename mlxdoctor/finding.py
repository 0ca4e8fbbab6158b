"""What a check reports: findings, and the outcome they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from mlxdoctor.quoting import without_quotations

#: A measured quantity: a number, a short text, or a short list of either.
Measurement = bool | int | float | str | tuple["int | float | str", ...] | None


class Severity(StrEnum):
    """How bad a finding is for the run that was examined."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return tuple(Severity).index(self)


class Status(StrEnum):
    """How a check ended. Only `PASSED` means that it looked and found nothing."""

    PASSED = "passed"
    FOUND = "found"
    SKIPPED = "skipped"
    INCONCLUSIVE = "inconclusive"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Finding:
    """One symptom, observed in the evidence. It never names a cause.

    Attributes:
        code: `check-name.symptom`; the module `checks/check_name.py` reports it.
        severity: what the symptom means for the run.
        message: one sentence that a person understands, with the figures in it.
        measured: the figures behind the message, by name.
        expected: what a sound run would have shown.
        where: the tensor, layer, file or row it was seen in.
        onset: the iteration at which it began, where it has one.
        fix: what to do about the symptom.
    """

    code: str
    severity: Severity
    message: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    expected: str = ""
    where: str | None = None
    onset: int | None = None
    fix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", MappingProxyType(dict(self.measured)))

    @property
    def fingerprint(self) -> str:
        """A stable identity for baselines: code and place, without any figure or quotation."""
        place = without_quotations(self.where or "")
        return hashlib.sha256(f"{self.code}\0{place}".encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """The finding as the JSON report shows it."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "measured": dict(self.measured),
            "expected": self.expected,
            "where": self.where,
            "onset": self.onset,
            "fix": self.fix,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class Outcome:
    """What became of one check.

    Attributes:
        check: the check's name.
        status: how it ended.
        reason: why it was skipped, inconclusive or crashed; empty otherwise.
        seconds: wall-clock time it took.
        findings: what it found, worst first.
        decisive: whether its silence says that training worked.
    """

    check: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    decisive: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The outcome as the JSON report shows it."""
        return {
            "check": self.check,
            "status": self.status.value,
            "reason": self.reason,
            "seconds": round(self.seconds, 4),
            "findings": [finding.to_dict() for finding in self.findings],
        }
