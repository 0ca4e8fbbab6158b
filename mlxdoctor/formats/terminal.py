"""The verdict on the terminal: what happened, what to change, where the report is."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxdoctor.formats import escape, summary

#: Findings that are named.
REASONS = 3
MIN_WIDTH, MAX_WIDTH = 40, 100
#: Characters of the reason why a check crashed.
_MAX_REASON = 200
_INDENT = "  "
_COLOURS = {"healthy": "green", "unhealthy": "red", "inconclusive": "yellow"}

#: Takes a text, a colour or None, and whether it is bold; returns the styled text.
Style = Callable[[str, str | None, bool], str]


def unstyled(text: str, colour: str | None, bold: bool) -> str:
    """`text` as it is: for files, pipes and people who asked for no colour."""
    del colour, bold
    return text


def render(
    data: Mapping[str, Any],
    *,
    width: int = 80,
    style: Style = unstyled,
    written: Sequence[str] = (),
) -> str:
    """The verdict in a dozen lines, with a line break at its end.

    Args:
        data: as `model.ReportData` describes it.
        width: columns of the terminal; lines are wrapped to it.
        style: colours a text; called after wrapping, so that widths hold.
        written: the files that hold the whole report.
    """
    columns = min(max(width, MIN_WIDTH), MAX_WIDTH)
    lines: list[str] = []

    def paragraph(text: str, first: str = _INDENT, colour: str | None = None) -> None:
        wrapped = textwrap.wrap(
            escape.terminal(text),
            columns,
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_on_hyphens=False,
        )
        lines.extend(style(line, colour, False) if colour else line for line in wrapped)

    verdict = data["verdict"]
    title = f"{data['name']}: {summary.headline(data)}"
    wrapped_title = textwrap.wrap(escape.terminal(title), columns, break_on_hyphens=False)
    lines += [style(line, _COLOURS[verdict], True) for line in wrapped_title]
    sample = summary.sample_sentence(data, with_base=False)
    if sample is not None:
        paragraph(sample, "  - ")
    for finding in summary.reasons(data, REASONS - (sample is not None)):
        paragraph(finding["message"], "  - ")
    _fix(data, paragraph, lines, style)
    _gaps(data, paragraph, lines, style)
    if written:
        lines.append("")
        lines.extend(f"{_INDENT}{escape.terminal(path)}" for path in written)
    return "\n".join(lines) + "\n"


def _fix(
    data: Mapping[str, Any],
    paragraph: Callable[..., None],
    lines: list[str],
    style: Style,
) -> None:
    cause = summary.root_cause(data)
    if cause is None:
        return
    lines += ["", style("What to change", None, True)]
    for change in summary.changes(data):
        before, after = summary.plain(change.before), summary.plain(change.after)
        paragraph(f"{change.key}: {before} -> {after}", colour="cyan")
    paragraph(data["causes"][cause["cause"]]["remedy"].replace("`", ""))


def _gaps(
    data: Mapping[str, Any],
    paragraph: Callable[..., None],
    lines: list[str],
    style: Style,
) -> None:
    kinds = [one["kind"] for one in data["run"]["missing"]]
    crashed = [one for one in data["outcomes"] if one["status"] == "crashed"]
    if not kinds and not crashed:
        return
    lines += ["", style("Not looked at", None, True)]
    if data["verdict"] == "inconclusive":
        for one in summary.missing(data):
            paragraph(f"{', '.join(one['kinds'])}: {one['why']}")
    elif kinds:
        paragraph(", ".join(kinds))
    if (helpful := data["next"]) is not None:
        how = f"; {helpful['how']}" if helpful["how"] else ""
        paragraph(f"most useful: {helpful['kind']} lacked its evidence: {helpful['why']}{how}")
    for one in crashed:
        why = one["reason"][:_MAX_REASON]
        paragraph(f"the check {one['check']} crashed ({why}): please report it as a bug")
