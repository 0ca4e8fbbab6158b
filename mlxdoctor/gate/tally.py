"""Counts and one-line descriptions that every format of the gate shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from mlxdoctor.formats import summary
from mlxdoctor.formats.gate_result import GateItem, GateResult, ItemStatus

#: The worst first, as a reader wants to see them.
WORST_FIRST = (
    ItemStatus.FAILED,
    ItemStatus.UNUSABLE,
    ItemStatus.INCONCLUSIVE,
    ItemStatus.PASSED,
)
COLOURS: Mapping[ItemStatus, str] = MappingProxyType(
    {
        ItemStatus.PASSED: "green",
        ItemStatus.FAILED: "red",
        ItemStatus.UNUSABLE: "red",
        ItemStatus.INCONCLUSIVE: "yellow",
    }
)


def counts(result: GateResult) -> dict[ItemStatus, int]:
    """How many items are of each status, the worst first."""
    counted = Counter(one.status for one in result.items)
    return {status: counted[status] for status in WORST_FIRST}


def headline(result: GateResult) -> str:
    """The result in a line: "2 of 12 failed, 1 is inconclusive, 9 passed"."""
    total = len(result.items) + len(result.unfinished)
    counted = counts(result)
    parts = [
        _part(status, count, total if status is ItemStatus.FAILED else None)
        for status, count in counted.items()
        if count
    ]
    if result.unfinished:
        parts.append(f"{len(result.unfinished):,} not examined")
    return ", ".join(parts) or "nothing was examined"


def _part(status: ItemStatus, count: int, total: int | None) -> str:
    if status in (ItemStatus.FAILED, ItemStatus.PASSED):
        return f"{count:,}{f' of {total:,}' if total else ''} {status.value}"
    return f"{count:,} {'is' if count == 1 else 'are'} {status.value}"


def not_passed(result: GateResult) -> list[GateItem]:
    """The items that did not pass, the worst first, otherwise in order."""
    return [one for one in worst_first(result) if one.status is not ItemStatus.PASSED]


def worst_first(result: GateResult) -> list[GateItem]:
    """All items, the worst first, otherwise in the order that was asked for."""
    return sorted(result.items, key=lambda one: WORST_FIRST.index(one.status))


def cause(item: GateItem) -> str:
    """What is behind a failed item, in a few words; "" where nothing is known or it passed."""
    if item.status is not ItemStatus.FAILED or item.report is None:
        return ""
    known = summary.root_cause(item.report)
    if known is None:
        return ""
    title = item.report["causes"][known["cause"]]["title"]
    return title if summary.is_clear(item.report) else f"probably: {summary.lowered(title)}"


def suppressed(item: GateItem) -> dict[str, int]:
    """How many findings are suppressed, by what."""
    return dict(Counter(one.suppressed_by for one in item.findings if one.suppressed_by))
