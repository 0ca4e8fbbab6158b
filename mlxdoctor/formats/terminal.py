"""What a terminal shows: a report's verdict, what to change, where the report is; and a gate."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

from mlxdoctor.finding import PLUGIN_FAULT, Status
from mlxdoctor.formats import escape, gated, summary
from mlxdoctor.formats.format import Format
from mlxdoctor.gate_result import GateResult, ItemStatus
from mlxdoctor.report import Report
from mlxdoctor.verdict import CauseTried, Readiness, Verdict

#: Reasons that are named of an item of the gate.
REASONS = 3
#: Paths listed of those that passed, or were not examined.
LISTED = 12
MIN_WIDTH, MAX_WIDTH = 40, 100
#: Characters of the reason why a check crashed.
_MAX_REASON = 200
_INDENT = "  "
#: Of what is neither, the colour is yellow.
_COLOURS: Mapping[Verdict | Readiness, str] = {
    Verdict.HEALTHY: "green",
    Verdict.UNHEALTHY: "red",
    Readiness.READY: "green",
    Readiness.NOT_READY: "red",
}
_EXPERIMENT_COLOURS = {"confirmed": "green", "refuted": None, "undecided": "yellow"}

#: Takes a text, a colour or None, and whether it is bold; returns the styled text.
Style = Callable[[str, str | None, bool], str]


def unstyled(text: str, _colour: str | None, _bold: bool) -> str:
    """`text` as it is: for files, pipes and people who asked for no colour."""
    return text


class Page:
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

    def title(self, text: str, colour: str | None, indent: str = "") -> None:
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

    def points(self, texts: Iterable[str]) -> None:
        """An item of a list for each text."""
        for text in texts:
            self.paragraph(text, "  - ")

    def paragraphs(self, texts: Sequence[str]) -> None:
        """A blank line and the texts; nothing where there are none."""
        self.lines += [""] if texts else []
        for text in texts:
            self.paragraph(text)

    def path(self, path: str) -> None:
        """One line, however long."""
        self.lines.append(f"{_INDENT}{escape.terminal(path)}")

    def ended(self, written: Sequence[str] = ()) -> str:
        """The text, with the files that hold more at its end."""
        if written:
            self.lines.append("")
        for path in written:
            self.path(path)
        return "\n".join(self.lines) + "\n"


def render(
    report: Report, *, width: int = 80, style: Style = unstyled, written: Sequence[str] = ()
) -> str:
    """The verdict in a dozen lines of at most `width` columns, with a line break at its end.

    `written` are the files that hold the whole report.
    """
    page = Page(width, style)
    plan = report.planned
    screen = summary.screen(report)
    colour = _COLOURS.get(plan.readiness if plan is not None else report.verdict, "yellow")
    page.title(f"{report.name}: {screen.headline}", colour)
    page.points(screen.facts)
    _experiments(page, report)
    before, after = (screen.fix.before, screen.fix.after) if screen.fix is not None else ({}, {})
    changes = [
        (f"{key}: {summary.plain(before[key])} -> {summary.plain(after[key])}", "cyan")
        for key in after
    ]
    # The knowledge base writes Markdown.
    advice = [(text.replace("`", ""), None) for text in screen.advice]
    if changes or advice:
        page.heading("What to change" if screen.is_certain else "What to change, if it is so")
    for text, tint in (*advice, *changes) if screen.leads else (*changes, *advice):
        page.paragraph(text, colour=tint)
    page.paragraphs(screen.remarks)
    if screen.command:
        page.path(screen.command)
    if screen.confirm:
        page.paragraphs(["To confirm it by experiment:"])
        page.path(screen.confirm)
    for outcome in report.outcomes if plan is None else ():
        if outcome.status is Status.CRASHED:
            why = outcome.reason[:_MAX_REASON]
            # A fault of a plugin is its author's.
            ask = "" if why.startswith(PLUGIN_FAULT) else ": please report it as a bug"
            page.paragraph(f"the check {outcome.check} crashed ({why}){ask}")
    return page.ended(written)


def _experiments(page: Page, report: Report) -> None:
    """What `reproduce` tried: the verdicts, what they rest on, and what they cost."""
    page.lines += [""] if report.experiments else []
    verdicts = [tried.verdict for tried in report.experiments if isinstance(tried, CauseTried)]
    if verdicts and "confirmed" not in verdicts:
        page.paragraph("No cause could be confirmed.")
    for tried in report.experiments:
        if isinstance(tried, CauseTried):
            colour = _EXPERIMENT_COLOURS[tried.verdict]
            # Not capitalised: it may begin with the name of a configuration key.
            page.paragraph(
                f"{tried.verdict}: {tried.title} ({tried.cause}), {tried.reason}.", colour=colour
            )
    if report.reruns:
        iterations = sum(rerun.iterations for rerun in report.reruns)
        seconds = summary.number(round(sum(rerun.seconds for rerun in report.reruns), 1))
        count = f"{len(report.reruns)} experiment{'' if len(report.reruns) == 1 else 's'}"
        page.paragraph(f"{count}: {iterations:,} iterations, {seconds} seconds.")


def render_gate(
    result: GateResult, *, width: int = 80, style: Style = unstyled, written: Sequence[str] = ()
) -> str:
    """What did not pass and why, then how many did; `width`, `style`, `written` as above."""
    page = Page(width, style)
    worst = next((status for status, count in gated.counts(result).items() if count), None)
    page.title(f"gate: {gated.tally(result)}", gated.COLOURS[worst] if worst else "yellow")
    if result.policy is not None:
        hides = f"; {result.hidden} above it was not read" if result.hidden else ""
        page.paragraph(f"by the policy {result.policy}{hides}")
    for item in gated.not_passed(result):
        cause = gated.cause_of(item)
        about = f": {summary.lowered(cause)}" if cause else ""
        page.lines.append("")
        title = f"{item.status.value}  {item.path}{about}"
        page.title(title, gated.COLOURS[item.status], indent="    ")
        page.points(
            summary.some([one.removeprefix(f"{item.path}: ") for one in item.reasons], REASONS)
        )
    if passed := [item.path for item in result.items if item.status is ItemStatus.PASSED]:
        page.heading("Passed", gated.COLOURS[ItemStatus.PASSED])
        for path in summary.some(passed, LISTED):
            page.path(path)
    for heading, sentences in gated.lists(result).items():
        if sentences:
            page.heading(heading)
            page.points(summary.some(sentences, LISTED))
    return page.ended(written)


FORMAT = Format("text", report=render, gate=render_gate)
