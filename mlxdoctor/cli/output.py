"""Where a command's results go: files written whole or not at all, and the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, EXIT_UNUSABLE
from mlxdoctor.formats import escape, strict_json
from mlxdoctor.safety.atomic import refuse_inside, write_files

if TYPE_CHECKING:
    from mlxdoctor.report import Report


def deliver(
    report: Report,
    names: Iterable[str],
    folder: Path,
    printed: str | None,
    *,
    inspected: Iterable[Path],
    written: Iterable[Path] = (),
) -> None:
    """Print a report in one format; or write it, and print what the terminal shows of it.

    Args:
        names: the formats that are written, into a folder below `folder` with the run's name.
        printed: the format that is printed, and nothing written; None where files are.
        inspected: the folders in which nothing may be written.
        written: files that were written already.

    Raises:
        InputError: a file can't be written, or its folder is inspected.
    """
    from mlxdoctor.formats import terminal
    from mlxdoctor.formats.format import files_of, text_of
    from mlxdoctor.formats.summary import slug

    if printed is None:
        target = folder / slug(report.name)
        for part in (target, target / "figures"):
            # A link placed there earlier must not lead into the evidence.
            refuse_inside(part, inspected)
        written = [*written, *write_files(target, files_of(report, *names))]
    if printed in (None, "text"):
        shown = [str(path) for path in written if path.suffix != ".png"]
        click.echo(terminal.render(report, width=width(), style=style, written=shown), nl=False)
    else:
        click.echo(text_of(report, printed), nl=False)
    for sentence in report.unreadable:
        click.echo(f"mlxdoctor: {escape.terminal(sentence)}", err=True)


def show(content: Any, text: str, printed: str) -> None:
    """Print what a command found: its content as JSON, or the text that says it."""
    shown = strict_json.render(content) if printed == "json" else text
    click.echo(shown, nl=not shown.endswith("\n"))


def exit_code(report: Report, fail_on: str) -> int:
    """The exit code of a report on a run, or on the plan of one.

    A file that could not be read comes first, as in grep: then the verdict
    rests on a part of the input, whatever it is.
    """
    from mlxdoctor.finding import Status
    from mlxdoctor.verdict import Readiness, Verdict

    if report.unreadable:
        return EXIT_UNUSABLE
    plan = report.planned
    state = report.verdict if plan is None else plan.readiness
    is_bad = state in (Verdict.UNHEALTHY, Readiness.NOT_READY) and fail_on != "never"
    if is_bad or any(finding.severity.reaches(fail_on) for finding in report.findings):
        return EXIT_FOUND
    crashed = any(outcome.status is Status.CRASHED for outcome in report.outcomes)
    is_open = state in (Verdict.INCONCLUSIVE, Readiness.UNKNOWN)
    return EXIT_INCONCLUSIVE if is_open or crashed else EXIT_CLEAN


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], wide: int) -> str:
    """A table as wide as the terminal: the column `wide` is wrapped, to 24 columns at least."""
    from tabulate import tabulate

    cells = [list(row) for row in rows]
    widest = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    taken = sum(widest) - widest[wide] + 2 * (len(headers) - 1)
    widths = [max(24, width() - taken) if n == wide else None for n in range(len(headers))]
    return tabulate(cells, headers, tablefmt="simple", maxcolwidths=widths)


def is_coloured() -> bool:
    """Whether standard output is a terminal that wants colour (https://no-color.org)."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return sys.stdout.isatty() and is_wanted


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def style(text: str, colour: str | None, bold: bool) -> str:
    """`text` with the escape sequences for a colour, on a terminal that wants them."""
    return click.style(text, fg=colour, bold=bold or None) if is_coloured() else text
