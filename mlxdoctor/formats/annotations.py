"""GitHub's annotations: workflow commands on standard output.

GitHub shows ten errors and ten warnings of a step, and drops the rest without a word. An item
is one annotation, so that the ten are ten items, and the tenth says how many more there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.formats.escape import terminal, workflow_message, workflow_property
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import cause_of, main_file, unexplained
from mlxdoctor.formats.places import in_checkout
from mlxdoctor.formats.summary import sentence
from mlxdoctor.gate_result import GateItem, GateResult, ItemStatus

#: Annotations of one kind that GitHub shows of a step.
MAX_SHOWN = 10
#: Findings of an item that its annotation names.
MAX_FINDINGS = 5
#: Severity of a finding -> kind of annotation.
KINDS = {"error": "error", "warning": "warning", "info": "notice"}


def command(kind: str, lines: Sequence[str], **properties: str | int) -> str:
    """One workflow command, in one line whatever is in its texts.

    Args:
        kind: "error", "warning" or "notice".
        lines: the message's lines.
        properties: `file`, `line`, `endLine`, `col`, `title`.
    """
    written = ",".join(
        f"{name}={workflow_property(str(value))}" for name, value in properties.items()
    )
    message = workflow_message("\n".join(terminal(line) for line in lines))
    return f"::{kind} {written}::{message}\n"


def render(result: GateResult) -> str:
    """Errors for the items that did not pass, warnings for what was noted of the others."""
    failed = [one for one in result.items if one.status is not ItemStatus.PASSED]
    errors = [_failed(one) for one in failed]
    names = [one.path for one in failed]
    if result.unfinished:
        count = len(result.unfinished)
        line = f"The work was interrupted: {count:,} not examined, {result.unfinished[0]} first."
        # It comes first: what passed says nothing about what was not looked at.
        errors.insert(0, command("error", [line], title="mlxdoctor gate: unfinished"))
        names.insert(0, "unfinished work")
    noted = [one for one in result.items if one.status is ItemStatus.PASSED and _noted(one)]
    warnings = [_notice(result, one) for one in result.notices]
    about = ["the policy"] * len(warnings) + [one.path for one in noted]
    warnings += [_warned(one) for one in noted]
    return _shown("error", errors, names) + _shown("warning", warnings, about)


def _shown(kind: str, commands: Sequence[str], names: Sequence[str]) -> str:
    if len(commands) <= MAX_SHOWN:
        return "".join(commands)
    kept = MAX_SHOWN - 1
    left = names[kept:]
    listed = ", ".join(left[:MAX_FINDINGS]) + (", …" if len(left) > MAX_FINDINGS else "")
    rest = command(kind, [f"{len(left):,} more: {listed}"], title="mlxdoctor gate: and more")
    return "".join([*commands[:kept], rest])


def _failed(item: GateItem) -> str:
    failing = [one.finding for one in item.findings if one.ruling == "fails"]
    cause = cause_of(item) if failing else None
    lines = [f"{cause}."] if cause is not None else []
    lines += _lines(failing)
    lines += [sentence(reason) for reason in unexplained(item)]
    return command("error", lines, **_file(main_file(item)), title=f"{item.path}: {item.status}")


def _warned(item: GateItem) -> str:
    lines = _lines(_noted(item))
    return command("warning", lines, **_file(main_file(item)), title=f"{item.path}: passed, noted")


def _notice(result: GateResult, notice: str) -> str:
    place = _file(result.policy) if result.policy is not None else {}
    return command("warning", [sentence(notice)], **place, title="mlxdoctor gate: the policy")


def _noted(item: GateItem) -> list[Finding]:
    """What the policy lets pass, and is worse than a remark."""
    return [
        one.finding
        for one in item.findings
        if one.ruling == "noted" and one.finding.severity is not Severity.INFO
    ]


def _lines(findings: Sequence[Finding]) -> list[str]:
    lines = [f"{one.code}: {one.message}" for one in findings[:MAX_FINDINGS]]
    left = len(findings) - MAX_FINDINGS
    return [*lines, f"and {left} more"] if left > 0 else lines


def _file(path: str) -> dict[str, str]:
    """The property that puts an annotation beside a file, where the checkout has it."""
    inside = in_checkout(path)
    return {"file": inside} if inside is not None else {}


# GitHub reads them from the log of a job, and never from a file.
FORMAT = Format("github", gate=render)
