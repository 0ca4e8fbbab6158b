"""The gate on a terminal: what did not pass and why, then how many did."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from mlxdoctor.formats import escape, summary
from mlxdoctor.formats.gate_result import GateItem, GateResult, ItemStatus
from mlxdoctor.formats.terminal import MAX_WIDTH, MIN_WIDTH, Style, unstyled
from mlxdoctor.gate import tally

#: Reasons shown of an item.
REASONS = 3
#: Paths listed of those that passed, or were not examined.
LISTED = 12


def render(
    result: GateResult, *, width: int = 80, style: Style = unstyled, written: Sequence[str] = ()
) -> str:
    """The result in plain text, with a line break at its end.

    Args:
        result: of the gate.
        width: columns of the terminal; lines are wrapped to it.
        style: colours a text; called after wrapping, so that widths hold.
        written: the files that hold more.
    """
    columns = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines: list[str] = []

    def paragraph(text: str, first: str = "  - ") -> None:
        lines.extend(
            textwrap.wrap(
                escape.terminal(text),
                columns,
                initial_indent=first,
                subsequent_indent=" " * len(first),
                break_on_hyphens=False,
            )
        )

    worst = next((status for status, count in tally.counts(result).items() if count), None)
    colour = tally.COLOURS[worst] if worst is not None else "yellow"
    summed_up = textwrap.wrap(f"gate: {tally.headline(result)}", columns)
    lines += [style(line, colour, True) for line in summed_up]
    for item in tally.not_passed(result):
        lines += ["", *_title(item, columns, style)]
        for reason in item.reasons[:REASONS]:
            paragraph(_without_path(reason, item.path))
        if len(item.reasons) > REASONS:
            paragraph(f"and {len(item.reasons) - REASONS} more")
    lines += _passed(result, style)
    for title, sentences in (
        ("The policy", result.notices),
        ("Not examined", _some(result.unfinished)),
    ):
        if sentences:
            lines += ["", style(title, None, True)]
            for one in sentences:
                paragraph(one)
    if written:
        lines += ["", *(f"  {escape.terminal(path)}" for path in written)]
    return "\n".join(lines) + "\n"


def _title(item: GateItem, columns: int, style: Style) -> list[str]:
    known = tally.cause(item)
    about = f": {summary.lowered(known)}" if known else ""
    text = escape.terminal(f"{item.status.value}  {item.path}{about}")
    wrapped = textwrap.wrap(text, columns, subsequent_indent="    ", break_on_hyphens=False)
    return [style(line, tally.COLOURS[item.status], True) for line in wrapped]


def _without_path(reason: str, path: str) -> str:
    """A reason without the path that stands above it."""
    return reason.removeprefix(f"{path}: ")


def _passed(result: GateResult, style: Style) -> list[str]:
    lines = []
    passed = [one.path for one in result.items if one.status is ItemStatus.PASSED]
    if passed:
        lines += ["", style("passed", tally.COLOURS[ItemStatus.PASSED], True)]
        lines += [f"  {escape.terminal(one)}" for one in _some(passed)]
    by: Counter[str] = Counter()
    for item in result.items:
        by.update(tally.suppressed(item))
    if by:
        names = {"ignore": "by an ignore", "baseline": "by the baseline"}
        listed = ", ".join(f"{count:,} {names[one]}" for one, count in sorted(by.items()))
        lines += ["", f"findings suppressed: {listed}"]
    return lines


def _some(paths: Sequence[str]) -> list[str]:
    if len(paths) <= LISTED:
        return list(paths)
    return [*paths[:LISTED], f"and {len(paths) - LISTED:,} more"]
