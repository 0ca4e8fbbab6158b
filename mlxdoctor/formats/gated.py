"""What several formats say of an item of the gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxdoctor.formats.gate_result import GateItem
from mlxdoctor.formats.places import in_checkout
from mlxdoctor.formats.summary import headline, root_cause

# Kinds of evidence to show an item's findings beside: what was trained comes first.
_KINDS = ("adapter", "tuned model", "training configuration", "training log", "checkpoint history")


def main_file(item: GateItem) -> str:
    """The file of an item to show its findings beside; its own path where the checkout has none."""
    sources = main_sources(item.report)
    return next((one for one in sources if in_checkout(one) is not None), item.path)


def main_sources(report: Mapping[str, Any] | None) -> list[str]:
    """The files that an item mainly consists of, the first of each kind."""
    sources: dict[str, str] = {}
    for one in report["run"]["evidence"] if report is not None else ():
        sources.setdefault(one["kind"], one["source"])
    return [sources[kind] for kind in _KINDS if kind in sources]


def unexplained(item: GateItem) -> list[str]:
    """The reasons that are no finding: what could not be read, decided or examined at all."""
    explained = {f"{one.finding['code']}: {one.finding['message']}" for one in item.findings}
    return [reason for reason in item.reasons if reason not in explained]


def cause_of(item: GateItem) -> str | None:
    """The headline of an item whose root cause is known: "Root cause: …"."""
    report = item.report
    return headline(report) if report is not None and root_cause(report) is not None else None
