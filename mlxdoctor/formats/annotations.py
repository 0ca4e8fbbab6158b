"""GitHub's annotations: workflow commands on standard output, one an item.

GitHub shows ten errors and ten warnings of a step, so that the tenth says how many more there are.
"""

from collections.abc import Sequence

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.formats.escape import terminal, workflow_message, workflow_property
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import cause_of, in_checkout, main_file
from mlxdoctor.formats.summary import sentence, some
from mlxdoctor.gate_result import GateItem, GateResult, ItemStatus

#: Annotations of one kind that GitHub shows of a step.
MAX_SHOWN = 10
#: Findings of an item that its annotation names.
MAX_FINDINGS = 5
#: Severity of a finding -> kind of annotation.
KINDS = {"error": "error", "warning": "warning", "info": "notice"}


def command(kind: str, lines: Sequence[str], **properties: str | int) -> str:
    """One workflow command ("error", "warning" or "notice"), in one line whatever they hold."""
    written = ",".join(
        f"{name}={workflow_property(str(value))}" for name, value in properties.items()
    )
    message = workflow_message("\n".join(terminal(line) for line in lines))
    return f"::{kind} {written}::{message}\n"


def render(result: GateResult) -> str:
    """Errors for the items that did not pass, warnings for what was noted of the others."""
    errors: list[tuple[str, str]] = []
    warnings: list[tuple[str, str]] = []
    if result.unfinished:
        count = len(result.unfinished)
        line = f"The work was interrupted: {count:,} not examined, {result.unfinished[0]} first."
        # It comes first: what passed says nothing about what was not looked at.
        unfinished = command("error", [line], title="mlxdoctor gate: unfinished")
        errors.append(("unfinished work", unfinished))
    for notice in result.notices:
        title = "mlxdoctor gate: the policy"
        warning = command("warning", [sentence(notice)], **_file(result.policy), title=title)
        warnings.append(("the policy", warning))
    for item in result.items:
        if item.status is not ItemStatus.PASSED:
            lines = [f"{cause}."] if (cause := cause_of(item)) else []
            lines += [*_lines(item.failing), *map(sentence, item.unexplained)]
            errors.append((item.path, _about(item, "error", item.status, lines)))
        elif noted := [finding for finding in item.noted if finding.severity is not Severity.INFO]:
            warnings.append((item.path, _about(item, "warning", "passed, noted", _lines(noted))))
    return _shown("error", errors) + _shown("warning", warnings)


def _shown(kind: str, commands: Sequence[tuple[str, str]]) -> str:
    kept = MAX_SHOWN if len(commands) <= MAX_SHOWN else MAX_SHOWN - 1
    text = "".join(command for _, command in commands[:kept])
    if not (names := [name for name, _ in commands[kept:]]):
        return text
    listed = ", ".join(names[:MAX_FINDINGS]) + (", …" if len(names) > MAX_FINDINGS else "")
    line = f"{len(names):,} more: {listed}"
    return text + command(kind, [line], title="mlxdoctor gate: and more")


def _about(item: GateItem, kind: str, status: str, lines: Sequence[str]) -> str:
    return command(kind, lines, **_file(main_file(item)), title=f"{item.path}: {status}")


def _lines(findings: Sequence[Finding]) -> list[str]:
    return some([f"{finding.code}: {finding.message}" for finding in findings], MAX_FINDINGS)


def _file(path: str | None) -> dict[str, str]:
    """The property that puts an annotation beside a file, where the checkout has it."""
    inside = in_checkout(path) if path is not None else None
    return {"file": inside} if inside is not None else {}


# GitHub reads them from the log of a job, and never from a file.
FORMAT = Format("github", gate=render)
