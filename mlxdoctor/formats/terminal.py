"""What a terminal shows: a report's verdict, what to change, where the report is; and a gate."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mlxdoctor.finding import Status
from mlxdoctor.formats import escape, gated, summary
from mlxdoctor.formats.format import Format
from mlxdoctor.gate_result import GateResult, ItemStatus
from mlxdoctor.report import Planned, Report
from mlxdoctor.verdict import Readiness, Verdict

#: Findings that are named of a run, and reasons of an item of the gate.
REASONS = 3
#: Paths listed of those that passed, or were not examined.
LISTED = 12
MIN_WIDTH, MAX_WIDTH = 40, 100
#: Characters of the reason why a check crashed.
_MAX_REASON = 200
_INDENT = "  "
_COLOURS = {
    Verdict.HEALTHY: "green",
    Verdict.SUSPECT: "yellow",
    Verdict.UNHEALTHY: "red",
    Verdict.INCONCLUSIVE: "yellow",
}

_READINESS = {
    Readiness.READY: "green",
    Readiness.READY_BUT: "yellow",
    Readiness.NOT_READY: "red",
    Readiness.UNKNOWN: "yellow",
}

#: Takes a text, a colour or None, and whether it is bold; returns the styled text.
Style = Callable[[str, str | None, bool], str]


def unstyled(text: str, colour: str | None, bold: bool) -> str:
    """`text` as it is: for files, pipes and people who asked for no colour."""
    del colour, bold
    return text


class _Page:
    """Lines for a terminal, wrapped to its width before they are coloured."""

    def __init__(self, width: int, style: Style) -> None:
        self._columns = min(max(width, MIN_WIDTH), MAX_WIDTH)
        self._style = style
        self.lines: list[str] = []

    def _wrapped(self, text: str, first: str, rest: str) -> list[str]:
        return textwrap.wrap(
            escape.terminal(text),
            self._columns,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
        )

    def title(self, text: str, colour: str, indent: str = "") -> None:
        """Bold lines in a colour; those after the first are indented."""
        wrapped = self._wrapped(text, "", indent)
        self.lines += [self._style(line, colour, True) for line in wrapped]

    def heading(self, text: str, colour: str | None = None) -> None:
        """A bold line below a blank one."""
        self.lines += ["", self._style(text, colour, True)]

    def paragraph(self, text: str, first: str = _INDENT, colour: str | None = None) -> None:
        """Lines below `first`, as far in as it."""
        wrapped = self._wrapped(text, first, " " * len(first))
        self.lines += [self._style(line, colour, False) if colour else line for line in wrapped]

    def listed(self, paths: Iterable[str]) -> None:
        """A line for each path, however long."""
        self.lines += [f"{_INDENT}{escape.terminal(one)}" for one in paths]

    def ended(self, written: Sequence[str]) -> str:
        """The text, with the files that hold more at its end."""
        if written:
            self.lines.append("")
            self.listed(written)
        return "\n".join(self.lines) + "\n"


def render(
    report: Report,
    *,
    width: int = 80,
    style: Style = unstyled,
    written: Sequence[str] = (),
) -> str:
    """The verdict in a dozen lines, with a line break at its end.

    Args:
        report: the report.
        width: columns of the terminal; lines are wrapped to it.
        style: colours a text; called after wrapping, so that widths hold.
        written: the files that hold the whole report.
    """
    page = _Page(width, style)
    title = f"{report.name}: {summary.headline(report)}"
    if report.planned is not None:
        page.title(title, _READINESS[report.planned.readiness])
        _planned(report, report.planned, page)
        return page.ended(written)
    page.title(title, _COLOURS[report.verdict])
    for problem in report.unreadable:
        page.paragraph(problem, "  - ")
    sample = summary.sample_sentence(report, with_base=False)
    if sample is not None:
        page.paragraph(sample, "  - ")
    for finding in summary.reasons(report, REASONS - (sample is not None)):
        page.paragraph(finding.message, "  - ")
    if report.root is None:
        # The headline of a healthy run is the first of what was seen; a suspicion comes first.
        last = 1 if report.suspected is not None else summary.SEEN
        for seen in report.seen[report.verdict is Verdict.HEALTHY : last]:
            page.paragraph(seen.message, "  - ")
    _fix(report, page)
    _gaps(report, page)
    return page.ended(written)


def _planned(report: Report, planned: Planned, page: _Page) -> None:
    """What stands in the way of a run that has not begun, what to change, and what it comes to."""
    for problem in report.unreadable:
        page.paragraph(problem, "  - ")
    for finding in summary.reasons(report, REASONS):
        page.paragraph(finding.message, "  - ")
    for fact in planned.facts if report.root is None else ():
        page.paragraph(fact, "  - ")
    if report.root is not None or report.suspected is not None:
        page.heading("What to change")
        for change in summary.changes(report):
            before, after = summary.plain(change.before), summary.plain(change.after)
            page.paragraph(f"{change.key}: {before} -> {after}", colour="cyan")
        for said in summary.advice(report):
            page.paragraph(said)
    if planned.open_because and planned.readiness is not Readiness.UNKNOWN:
        page.lines.append("")
        page.paragraph(summary.sentence(planned.open_because))
    if advice := summary.to_know_more(report):
        page.paragraph(advice)


def _fix(report: Report, page: _Page) -> None:
    if report.root is None and report.suspected is None:
        return
    page.heading("What to change" if report.root is not None else "What to change, if it is so")
    for change in summary.changes(report):
        before, after = summary.plain(change.before), summary.plain(change.after)
        page.paragraph(f"{change.key}: {before} -> {after}", colour="cyan")
    page.paragraph(summary.remedy(report).replace("`", ""))


def _gaps(report: Report, page: _Page) -> None:
    crashed = [one for one in report.outcomes if one.status is Status.CRASHED]
    known = summary.coverage(report) if report.root is None else ""
    useful = summary.most_useful(report)
    sentences = [known, summary.left_out(report), useful]
    if any(sentences):
        page.lines.append("")
    for sentence in filter(None, sentences):
        page.paragraph(sentence)
    if command := summary.next_command(report):
        page.listed([command])
    for one in crashed:
        why = one.reason[:_MAX_REASON]
        page.paragraph(f"the check {one.check} crashed ({why}): please report it as a bug")


def render_gate(
    result: GateResult, *, width: int = 80, style: Style = unstyled, written: Sequence[str] = ()
) -> str:
    """What did not pass and why, then how many did; `width`, `style`, `written` as above."""
    page = _Page(width, style)
    worst = next((status for status, count in gated.counts(result).items() if count), None)
    colour = gated.COLOURS[worst] if worst is not None else "yellow"
    page.title(f"gate: {gated.tally(result)}", colour)
    for item in gated.not_passed(result):
        known = gated.named_cause(item)
        about = f": {summary.lowered(known)}" if known else ""
        page.lines.append("")
        title = f"{item.status.value}  {item.path}{about}"
        page.title(title, gated.COLOURS[item.status], indent="    ")
        for reason in item.reasons[:REASONS]:
            # The path stands above it.
            page.paragraph(reason.removeprefix(f"{item.path}: "), "  - ")
        if len(item.reasons) > REASONS:
            page.paragraph(f"and {len(item.reasons) - REASONS} more", "  - ")
    told = (
        ("passed, and suspect", [(one, summary.lowered(one.suspicion)) for one in result.items]),
        ("let through by the policy", [(one, ", ".join(one.let_through)) for one in result.items]),
    )
    for heading, of_items in told:
        if lines := [f"{one.path}: {said}" for one, said in of_items if said]:
            page.heading(heading, "yellow")
            for line in _some(lines):
                page.paragraph(line)
    if passed := [
        one.path for one in result.items if one.status is ItemStatus.PASSED and not one.suspicion
    ]:
        page.heading("passed", gated.COLOURS[ItemStatus.PASSED])
        page.listed(_some(passed))
    if accepted := [one.path for one in result.items if gated.suppressed(one)["baseline"]]:
        page.heading("baselined")
        page.listed(_some(accepted))
    if by := Counter(how for item in result.items for how in gated.suppressed(item).elements()):
        names = {"ignore": "by an ignore", "baseline": "by the baseline"}
        listed = ", ".join(f"{count:,} {names[one]}" for one, count in sorted(by.items()))
        page.lines += ["", f"findings suppressed: {listed}"]
    for heading, sentences in (
        ("Not seen", gated.unseen(result)),
        ("The policy", result.notices),
        ("Not examined", _some(result.unfinished)),
    ):
        if sentences:
            page.heading(heading)
            for one in sentences:
                page.paragraph(one, "  - ")
    return page.ended(written)


def _some(paths: Sequence[str]) -> list[str]:
    if len(paths) <= LISTED:
        return list(paths)
    return [*paths[:LISTED], f"and {len(paths) - LISTED:,} more"]


FORMAT = Format("text", report=render, gate=render_gate)
