"""What the gate found, as every output format is given it.

What the policy made of a report's findings stands beside it, in the findings' order.
"""

from __future__ import annotations

import pickle
import zlib
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from mlxdoctor.finding import Finding
from mlxdoctor.report import Report

#: Reports that are unpacked at a time: formats look at one after the other.
UNPACKED = 4
#: Bytes of another text that a compressed one can repeat parts of.
_DICTIONARY = 1 << 15


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
class HeldReport:
    """A report that takes a tenth of its memory, for a gate holds thousands.

    Attributes:
        packed: the report, compressed once it lies beside another one.
        like: another report as it is, of which the compressed one repeats parts.
    """

    packed: bytes
    like: bytes = b""

    @classmethod
    def of(cls, report: Report) -> HeldReport:
        """The report, packed, and as long as it is."""
        return cls(zlib.compress(pickle.dumps(report.alone), 0))

    def beside(self, first: HeldReport) -> HeldReport:
        """The same, packed as what it says otherwise than `first`, which is beside itself."""
        like = first.like or _pickled(first.packed, b"")
        return HeldReport(_packed(_pickled(self.packed, self.like), like), like)

    @property
    def report(self) -> Report:
        """The report, unpacked when it is looked at."""
        return _unpacked(self.packed, self.like)


def _packed(pickled: bytes, like: bytes) -> bytes:
    packer = zlib.compressobj(3, zdict=like[-_DICTIONARY:])
    return packer.compress(pickled) + packer.flush()


def _pickled(packed: bytes, like: bytes) -> bytes:
    return zlib.decompressobj(zdict=like[-_DICTIONARY:]).decompress(packed)


@lru_cache(maxsize=UNPACKED)
def _unpacked(packed: bytes, like: bytes) -> Report:
    # Packed by this process, or by a worker of its own.
    report: Report = pickle.loads(_pickled(packed, like))
    return report


@dataclass(frozen=True)
class GateItem:
    """One adapter or run.

    Attributes:
        path: as the user wrote it, or as the glob found it.
        status: what became of it.
        reasons: why it did not pass, a sentence each; empty where it passed.
        held: its report; None where it could not be examined.
        findings: every finding of the report, worst first.
        seconds: how long it took.
        suspicion: of an item that passed although its run is suspect: what is suspected.
        unseen: of an item that passed: what its files can't tell, and what it takes, as clauses.
        let_through: codes of errors that the policy's own rules and thresholds let through.
    """

    path: str
    status: ItemStatus
    reasons: tuple[str, ...]
    held: HeldReport | None
    findings: tuple[GatedFinding, ...]
    seconds: float
    suspicion: str = ""
    unseen: tuple[str, ...] = ()
    let_through: tuple[str, ...] = ()

    @property
    def report(self) -> Report | None:
        """The report; None where the item could not be examined."""
        return self.held.report if self.held is not None else None


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
