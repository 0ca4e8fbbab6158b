"""What several formats say of a gate's result: counts, one-line descriptions, an item's file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from mlxdoctor.formats.places import in_checkout
from mlxdoctor.formats.summary import headline, is_clear, lowered
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus
from mlxdoctor.report import Report

#: What a run itself consists of. What was trained comes first: findings are shown beside it.
MAIN_KINDS = (
    "adapter",
    "tuned model",
    "training configuration",
    "training log",
    "checkpoint history",
)
#: Status -> its colour; the worst first, as a reader wants to see them.
COLOURS: Mapping[ItemStatus, str] = MappingProxyType(
    {
        ItemStatus.FAILED: "red",
        ItemStatus.UNUSABLE: "red",
        ItemStatus.INCONCLUSIVE: "yellow",
        ItemStatus.PASSED: "green",
    }
)


def counts(result: GateResult) -> dict[ItemStatus, int]:
    """How many items are of each status, the worst first."""
    counted = Counter(item.status for item in result.items)
    return {status: counted[status] for status in COLOURS}


def tally(result: GateResult) -> str:
    """The result in a line: "2 of 12 failed, 1 is inconclusive, 9 passed"."""
    total = len(result.items) + len(result.unfinished)
    parts = []
    for status, count in counts(result).items():
        if status is ItemStatus.FAILED and count:
            parts.append(f"{count:,} of {total:,} failed")
        elif count:
            verb = "" if status is ItemStatus.PASSED else "is " if count == 1 else "are "
            parts.append(f"{count:,} {verb}{status.value}")
    if suspects := sum(bool(item.suspicion) for item in result.items):
        parts[-1] += f" ({suspects:,} suspect)"
    if result.unfinished:
        parts.append(f"{len(result.unfinished):,} not examined")
    return ", ".join(parts) or "nothing was examined"


def not_passed(result: GateResult) -> list[GateItem]:
    """The items that did not pass, the worst first, otherwise in order."""
    return [item for item in worst_first(result) if item.status is not ItemStatus.PASSED]


def worst_first(result: GateResult) -> list[GateItem]:
    """All items, the worst first, otherwise in the order that was asked for."""
    return sorted(result.items, key=lambda item: tuple(COLOURS).index(item.status))


def named_cause(item: GateItem) -> str:
    """What is behind a failed item, in a few words; "" where nothing is known or it passed."""
    report = item.report
    if item.status is not ItemStatus.FAILED or report is None or report.root is None:
        return ""
    title = report.root.cause.title
    return title if is_clear(report) else f"probably: {lowered(title)}"


def suppressed(item: GateItem) -> Counter[str]:
    """How many findings are suppressed, by what."""
    return Counter(gated.suppressed_by for gated in item.findings if gated.suppressed_by)


def suppressed_findings(result: GateResult) -> list[tuple[str, GatedFinding]]:
    """Every finding that is suppressed, with the path of its item."""
    return [
        (item.path, gated)
        for item in result.items
        for gated in item.findings
        if gated.suppressed_by is not None
    ]


def main_file(item: GateItem) -> str:
    """The file of an item to show its findings beside; its own path where the checkout has none."""
    sources = main_sources(item.report) if item.report is not None else []
    return next((source for source in sources if in_checkout(source) is not None), item.path)


def main_sources(report: Report) -> list[str]:
    """The files that a run mainly consists of, the first of each kind."""
    sources = {file.kind: file.source for file in reversed(report.evidence)}
    return [sources[kind] for kind in MAIN_KINDS if kind in sources]


def unseen(result: GateResult) -> list[str]:
    """What the items that passed were not judged by: a sentence for each thing they need."""
    counted = Counter(need for item in result.items for need in item.unseen)
    return [
        f"{need} ({count:,} passed on {'its' if count == 1 else 'their'} files alone)"
        for need, count in counted.most_common()
    ]


def unexplained(item: GateItem) -> list[str]:
    """The reasons that are no finding: what could not be read, decided or examined at all."""
    findings = [gated.finding for gated in item.findings]
    explained = {f"{finding.code}: {finding.message}" for finding in findings}
    return [reason for reason in item.reasons if reason not in explained]


def cause_of(item: GateItem) -> str | None:
    """The headline of an item whose root cause is known: "Root cause: …"."""
    report = item.report
    return headline(report) if report is not None and report.root is not None else None
