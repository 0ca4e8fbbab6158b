"""What a terminal shows: a report's verdict, what to change, where the report is; and a gate."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mlxdoctor.confirmation import Agreement, CauseTried, DirectExperiment, Rerun
from mlxdoctor.finding import Status
from mlxdoctor.formats import escape, gated, summary
from mlxdoctor.formats.format import Format
from mlxdoctor.gate_result import GateResult, ItemStatus
from mlxdoctor.report import Report
from mlxdoctor.verdict import Readiness, Verdict

#: Findings that are named of a run, and reasons of an item of the gate.
REASONS = 3
#: Paths listed of those that passed, or were not examined.
LISTED = 12
MIN_WIDTH, MAX_WIDTH = 40, 100
#: Characters of the reason why a check crashed.
_MAX_REASON = 200
_INDENT = "  "
#: Columns of the word for an experiment's verdict.
_WORD = 11
_COLOURS: Mapping[Verdict | Readiness, str] = {
    Verdict.HEALTHY: "green",
    Verdict.SUSPECT: "yellow",
    Verdict.UNHEALTHY: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Readiness.READY: "green",
    Readiness.READY_BUT: "yellow",
    Readiness.NOT_READY: "red",
    Readiness.UNKNOWN: "yellow",
}
_EXPERIMENT_COLOURS = {"confirmed": "green", "refuted": None, "undecided": "yellow"}

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

    def paragraphs(self, texts: Iterable[str]) -> None:
        """A blank line and the texts that are not empty; nothing where all are."""
        if shown := [text for text in texts if text]:
            self.lines.append("")
            for text in shown:
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
    plan = report.planned
    colour = _COLOURS[plan.readiness if plan is not None else report.verdict]
    page.title(f"{report.name}: {summary.headline(report)}", colour)
    page.points(_facts(report))
    if report.root is not None or report.suspected is not None:
        is_certain = report.root is not None or plan is not None
        page.heading("What to change" if is_certain else "What to change, if it is so")
        for change in _changes(report):
            page.paragraph(change, colour="cyan")
        for advice in summary.advice(report) if plan is not None else [summary.remedy(report)]:
            page.paragraph(advice if plan is not None else advice.replace("`", ""))
    page.paragraphs(_open(report))
    if command := summary.next_command(report) if plan is None else "":
        page.path(command)
    for outcome in report.outcomes if plan is None else ():
        if outcome.status is Status.CRASHED:
            why = outcome.reason[:_MAX_REASON]
            page.paragraph(f"the check {outcome.check} crashed ({why}): please report it as a bug")
    return page.ended(written)


def _facts(report: Report) -> list[str]:
    """What speaks for the verdict, and what else was seen."""
    sample = summary.sample_sentence(report, with_base=False)
    answers = [sample] if sample is not None else []
    reasons = summary.reasons(report, REASONS - len(answers))
    facts = [*report.unreadable, *answers, *(finding.message for finding in reasons)]
    if report.root is not None:
        return facts
    if report.planned is not None:
        return [*facts, *report.planned.facts]
    # The headline of a healthy run is the first of what was seen; a suspicion comes first.
    first = 1 if report.verdict is Verdict.HEALTHY else 0
    last = 1 if report.suspected is not None else summary.SEEN
    return [*facts, *(seen.message for seen in report.seen[first:last])]


def _changes(report: Report) -> list[str]:
    return [
        f"{change.key}: {summary.plain(change.before)} -> {summary.plain(change.after)}"
        for change in summary.changes(report)
    ]


def _open(report: Report) -> list[str]:
    """What is not known, and what would tell."""
    plan = report.planned
    if plan is None:
        coverage = summary.coverage(report) if report.root is None else ""
        return [coverage, summary.left_out(report), summary.most_useful(report)]
    said = plan.open_because if plan.readiness is not Readiness.UNKNOWN else ""
    return [summary.sentence(said) if said else "", summary.to_know_more(report)]


def render_experiments(
    report: Report, written: Sequence[str], width: int = 80, style: Style = unstyled
) -> str:
    """What `mlxdoctor reproduce` prints: the verdicts, what they rest on, and what they cost."""
    page = _Page(width, style)
    verdicts = [tried for tried in report.experiments if isinstance(tried, CauseTried)]
    is_confirmed = any(tried.verdict == "confirmed" for tried in verdicts)
    if is_confirmed:
        headline = "the cause is confirmed by experiment."
    elif verdicts:
        headline = "no cause could be confirmed by experiment."
    else:
        headline = "no known cause explains what was found; --cause tries one anyway."
    page.title(f"{report.name}: {headline}", None)
    page.lines += [""] if verdicts else []
    for cause in verdicts:
        word = style(f"{cause.verdict:<{_WORD}}", _EXPERIMENT_COLOURS[cause.verdict], True)
        page.lines.append(f"{word}{escape.terminal(cause.title)} ({cause.cause})")
        # Not capitalised: it may begin with the name of a configuration key.
        page.paragraph(f"{cause.reason}.", " " * _WORD)
    for change in _changes(report) if is_confirmed else ():
        page.lines.append(f"{'cured by':<{_WORD}}{escape.terminal(change)}")
    for tried in report.experiments:
        if isinstance(tried, Agreement):
            page.lines.append("")
            page.paragraph(tried.sentence, "")
    made = [tried for tried in report.experiments if isinstance(tried, DirectExperiment | Rerun)]
    iterations = sum(tried.iterations for tried in made)
    seconds = summary.number(round(sum(tried.seconds for tried in made), 1))
    count = f"{len(made)} experiment{'' if len(made) == 1 else 's'}"
    page.lines += ["", f"{count}: {iterations:,} iterations, {seconds} seconds."]
    for path in written:
        page.path(path)
    return page.ended()


def render_gate(
    result: GateResult, *, width: int = 80, style: Style = unstyled, written: Sequence[str] = ()
) -> str:
    """What did not pass and why, then how many did; `width`, `style`, `written` as above."""
    page = _Page(width, style)
    worst = next((status for status, count in gated.counts(result).items() if count), None)
    page.title(f"gate: {gated.tally(result)}", gated.COLOURS[worst] if worst else "yellow")
    for item in gated.not_passed(result):
        cause = gated.named_cause(item)
        about = f": {summary.lowered(cause)}" if cause else ""
        page.lines.append("")
        title = f"{item.status.value}  {item.path}{about}"
        page.title(title, gated.COLOURS[item.status], indent="    ")
        # The path stands above it.
        page.points(reason.removeprefix(f"{item.path}: ") for reason in item.reasons[:REASONS])
        if len(item.reasons) > REASONS:
            page.points([f"and {len(item.reasons) - REASONS} more"])
    items = result.items
    accepted = [item.path for item in items if gated.suppressed(item)["baseline"]]
    passed = [one.path for one in items if one.status is ItemStatus.PASSED and not one.suspicion]
    suspect = [
        f"{item.path}: {summary.lowered(item.suspicion)}" for item in items if item.suspicion
    ]
    through = [f"{item.path}: {', '.join(item.let_through)}" for item in items if item.let_through]
    for heading, colour, lines, show in (
        ("passed, and suspect", "yellow", suspect, page.paragraph),
        ("let through by the policy", "yellow", through, page.paragraph),
        ("passed", gated.COLOURS[ItemStatus.PASSED], passed, page.path),
        ("baselined", None, accepted, page.path),
    ):
        if lines:
            page.heading(heading, colour)
            for line in _some(lines):
                show(line)
    if by := Counter(how for item in items for how in gated.suppressed(item).elements()):
        names = {"ignore": "by an ignore", "baseline": "by the baseline"}
        listed = ", ".join(f"{count:,} {names[how]}" for how, count in sorted(by.items()))
        page.lines += ["", f"findings suppressed: {listed}"]
    for heading, sentences in (
        ("Not seen", gated.unseen(result)),
        ("The policy", result.notices),
        ("Not examined", _some(result.unfinished)),
    ):
        if sentences:
            page.heading(heading)
            page.points(sentences)
    return page.ended(written)


def _some(paths: Sequence[str]) -> list[str]:
    if len(paths) <= LISTED:
        return list(paths)
    return [*paths[:LISTED], f"and {len(paths) - LISTED:,} more"]


FORMAT = Format("text", report=render, gate=render_gate)
