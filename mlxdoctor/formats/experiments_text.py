"""A reproduction on the terminal: the verdicts, what they rest on, and what they cost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from mlxdoctor.confirmation import (
    Agreement,
    CauseTried,
    DirectExperiment,
    Experiment,
    Rerun,
)
from mlxdoctor.formats.escape import terminal
from mlxdoctor.formats.summary import changes, number, plain
from mlxdoctor.formats.terminal import Style
from mlxdoctor.report import Report

_COLOURS = {"confirmed": "green", "refuted": None, "undecided": "yellow"}
#: Columns of the word for a verdict.
_INDENT = 11
#: Lines are no longer than this, whatever the terminal (columns).
_WIDEST = 100


def render(report: Report, written: Sequence[Path], width: int, style: Style) -> str:
    """What `mlxdoctor reproduce` prints.

    Args:
        report: with what was tried.
        written: its files.
        width: of the terminal, in columns.
        style: colours a text.
    """
    verdicts = [one for one in report.experiments if isinstance(one, CauseTried)]
    width = min(width, _WIDEST)
    lines = [style(terminal(_headline(report, verdicts)), None, True)]
    lines += [""] if verdicts else []
    for one in verdicts:
        word = style(f"{one.verdict:<{_INDENT}}", _COLOURS[one.verdict], True)
        lines.append(f"{word}{terminal(one.title)} ({one.cause})")
        # Not capitalised: it may begin with the name of a configuration key.
        lines += _wrapped(f"{one.reason}.", width, _INDENT)
    if any(one.verdict == "confirmed" for one in verdicts):
        for change in changes(report):
            text = f"{change.key}: {plain(change.before)} -> {plain(change.after)}"
            lines += [f"{'cured by':<{_INDENT}}{terminal(text)}"]
    for tried in report.experiments:
        if isinstance(tried, Agreement):
            lines += ["", *_wrapped(tried.sentence, width, 0)]
    lines += ["", _cost(report.experiments)]
    lines += [f"  {terminal(str(path))}" for path in written if path.suffix != ".png"]
    return "\n".join(lines) + "\n"


def _headline(report: Report, verdicts: Sequence[CauseTried]) -> str:
    if not verdicts:
        return f"{report.name}: no known cause explains what was found; --cause tries one anyway."
    confirmed = [one for one in verdicts if one.verdict == "confirmed"]
    if confirmed:
        return f"{report.name}: the cause is confirmed by experiment."
    return f"{report.name}: no cause could be confirmed by experiment."


def _cost(experiments: Sequence[Experiment]) -> str:
    made = [one for one in experiments if isinstance(one, DirectExperiment | Rerun)]
    iterations = sum(one.iterations for one in made)
    seconds = sum(one.seconds for one in made)
    count = f"{len(made)} experiment{'' if len(made) == 1 else 's'}"
    return f"{count}: {iterations:,} iterations, {number(round(seconds, 1))} seconds."


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    filled = textwrap.wrap(terminal(text), max(width - indent, 20), break_on_hyphens=False)
    return [" " * indent + line for line in filled]
