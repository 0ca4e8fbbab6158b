"""What several formats say of a gate's result: counts, causes, lists, and where an item lies."""

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mlxdoctor.formats.summary import headline, lowered
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus

#: What a run itself consists of. What was trained comes first: findings are shown beside it.
MAIN_KINDS = (
    "adapter",
    "tuned model",
    "training configuration",
    "training log",
    "checkpoint history",
)
#: Variables in which GitHub and GitLab name the folder of the checkout.
CHECKOUT_VARIABLES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
#: Status -> its colour; the worst first, as a reader wants to see them.
COLOURS: Mapping[ItemStatus, str] = {
    ItemStatus.FAILED: "red",
    ItemStatus.UNUSABLE: "red",
    ItemStatus.INCONCLUSIVE: "yellow",
    ItemStatus.PASSED: "green",
}


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


def worst_first(result: GateResult) -> list[GateItem]:
    """All items, the worst first, otherwise in the order that was asked for."""
    return sorted(result.items, key=lambda item: tuple(COLOURS).index(item.status))


def not_passed(result: GateResult) -> list[GateItem]:
    """Those of them that did not pass."""
    return [item for item in worst_first(result) if item.status is not ItemStatus.PASSED]


def cause_of(item: GateItem) -> str:
    """The headline of a failed item whose root cause is known, "Root cause: …"; "" elsewhere."""
    report = item.report
    if item.status is not ItemStatus.FAILED or report is None or report.root is None:
        return ""
    return headline(report)


def twins(result: GateResult) -> list[str]:
    """Items with the same adapter, byte for byte, a clause for each."""
    same: dict[str, list[str]] = {}
    for item in result.items:
        for file in item.report.evidence if item.report is not None else ():
            if file.kind == MAIN_KINDS[0] and file.sha256:
                same.setdefault(file.sha256, []).append(item.path)
    paths = (list(dict.fromkeys(each)) for each in same.values())
    return [f"{', '.join(each)}: one adapter" for each in paths if len(each) > 1]


def suppressed_findings(result: GateResult) -> list[tuple[str, GatedFinding]]:
    """Every finding that is suppressed, with the path of its item."""
    return [
        (item.path, gated)
        for item in result.items
        for gated in item.findings
        if gated.suppressed_by is not None
    ]


def lists(result: GateResult) -> dict[str, list[str]]:
    """What there is to know beside who passed: heading -> sentences, or paths."""
    needs = Counter(need for item in result.items for need in item.unseen)
    by = Counter(held.suppressed_by or "" for _, held in suppressed_findings(result))
    return {
        "Passed, and suspect": [
            f"{item.path}: {lowered(item.suspicion)}" for item in result.items if item.suspicion
        ],
        "Let through by the policy": [
            f"{item.path}: {', '.join(item.let_through)}"
            for item in result.items
            if item.let_through
        ],
        "The same weights": twins(result),
        "Findings suppressed": [f"{count:,} by the {how}" for how, count in sorted(by.items())],
        "Not seen": [f"{need} ({count:,} passed without)" for need, count in needs.most_common()],
        "The policy": [*result.notices],
        "Not examined": [*result.unfinished],
    }


def main_file(item: GateItem) -> str:
    """The file of an item to show its findings beside; its own path where the checkout has none."""
    evidence = item.report.evidence if item.report is not None else ()
    sources = {file.kind: file.source for file in reversed(evidence)}
    main = [sources[kind] for kind in MAIN_KINDS if kind in sources]
    return next((source for source in main if in_checkout(source) is not None), item.path)


def in_checkout(path: str | Path) -> str | None:
    """`path` from the checkout's root, as code hosts call it; None where it does not lie there.

    The checkout is the folder that a CI job names and runs in, else the current folder.
    """
    root = Path.cwd()
    for name in CHECKOUT_VARIABLES:
        named = Path(os.environ.get(name) or root).resolve()
        if root.is_relative_to(named):
            root = named
    try:
        resolved = Path(path).resolve()
        if resolved.is_relative_to(root) and resolved.exists():
            return resolved.relative_to(root).as_posix()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return None
