"""The gate as a page: a job's summary, with what failed first."""

from __future__ import annotations

from collections.abc import Sequence

from mlxdoctor.formats import escape, summary
from mlxdoctor.formats.gate_result import GateItem, GateResult, ItemStatus
from mlxdoctor.gate import tally

#: Items that are described, and findings of each. GitHub takes a summary of a megabyte.
DESCRIBED, FINDINGS = 40, 6
#: Rows of a table.
ROWS = 1_000


def render(result: GateResult) -> str:
    """The result as Markdown, with a line break at its end."""
    parts = [f"# Gate: {escape.markdown(tally.headline(result))}"]
    parts += _described(result)
    if result.items:
        parts += ["## All items", _items(result)]
    if rows := _suppressed(result):
        parts += ["## Suppressed findings", _table(["item", "finding", "by", "reason"], rows)]
    parts += _listed("The policy", [escape.markdown(one) for one in result.notices])
    parts += _listed("Not examined", [escape.code(one) for one in result.unfinished])
    source = f"the policy in {escape.code(result.policy)}" if result.policy else "the default rules"
    parts.append(
        f"Judged by {source}. `mlxdoctor diagnose` makes a report about one item, "
        "`mlxdoctor explain` says what a code means."
    )
    return "\n\n".join(parts) + "\n"


def _described(result: GateResult) -> list[str]:
    items = tally.not_passed(result)
    parts = []
    for item in items[:DESCRIBED]:
        known = tally.cause(item)
        about = f": {escape.markdown(summary.lowered(known))}" if known else ""
        parts.append(f"## {escape.code(item.path)} {_verb(item.status)}{about}")
        parts.append("\n".join(_findings(item) + _reasons(item)))
    if len(items) > DESCRIBED:
        parts.append(f"{len(items) - DESCRIBED:,} more did not pass; the table names them.")
    return [one for one in parts if one]


def _verb(status: ItemStatus) -> str:
    return status.value if status is ItemStatus.FAILED else f"is {status.value}"


def _findings(item: GateItem) -> list[str]:
    failing = [one.finding for one in item.findings if one.ruling == "fails"]
    lines = []
    for one in failing[:FINDINGS]:
        fix = f" {escape.markdown(summary.sentence(one['fix']))}" if one["fix"] else ""
        message = escape.markdown(summary.sentence(one["message"]))
        lines.append(f"- {escape.code(one['code'])}: {message}{fix}")
    if len(failing) > FINDINGS:
        lines.append(f"- and {len(failing) - FINDINGS} more")
    return lines


def _reasons(item: GateItem) -> list[str]:
    """The reasons that are no findings."""
    failing = sum(one.ruling == "fails" for one in item.findings)
    return [
        f"- {escape.markdown(one.removeprefix(f'{item.path}: '))}" for one in item.reasons[failing:]
    ]


def _items(result: GateResult) -> str:
    rows = []
    for item in tally.worst_first(result)[:ROWS]:
        noted = sum(one.ruling == "noted" for one in item.findings)
        failing = [one.finding["code"] for one in item.findings if one.ruling == "fails"]
        rows.append(
            [
                escape.code(item.path),
                item.status.value,
                ", ".join(escape.code(one) for one in dict.fromkeys(failing[:FINDINGS])),
                str(noted),
                f"{item.seconds:.1f} s",
            ]
        )
    table = _table(["item", "status", "failing", "notes", "time"], rows)
    left = len(result.items) - ROWS
    return f"{table}\n\nand {left:,} more" if left > 0 else table


def _suppressed(result: GateResult) -> list[list[str]]:
    rows = [
        [
            escape.code(item.path),
            escape.code(one.finding["code"]),
            one.suppressed_by,
            escape.markdown(one.reason),
        ]
        for item in result.items
        for one in item.findings
        if one.suppressed_by is not None
    ]
    left = len(rows) - ROWS
    return [*rows[:ROWS], [f"and {left:,} more", "", "", ""]] if left > 0 else rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    shown = [f"- {one}" for one in lines[:ROWS]]
    if len(lines) > ROWS:
        shown.append(f"- and {len(lines) - ROWS:,} more")
    return [f"## {title}", "\n".join(shown)]
