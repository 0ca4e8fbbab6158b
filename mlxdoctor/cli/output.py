"""Where a command's results go: files written whole or not at all, and the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from mlxdoctor.gate_result import GateResult
from mlxdoctor.report import Report
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError


def refuse_inside(folder: Path, inspected: Iterable[Path]) -> None:
    """Refuse to write below a folder that is inspected: evidence stays as it was found.

    Raises:
        InputError: `folder` is, or lies in, one of the inspected folders.
    """
    target = folder.resolve()
    for path in inspected:
        root = path.resolve()
        if root.is_dir() and target.is_relative_to(root):
            raise InputError(
                folder,
                f"lies inside the inspected folder {path}, in which nothing is written",
                "name another folder with --output, or print with --stdout",
            )


def write_files(folder: Path, files: Mapping[str, bytes], stale: Iterable[str] = ()) -> list[Path]:
    """Write `files` (relative name -> content) below `folder`, each at once or not at all.

    Args:
        folder: made where it does not exist.
        files: what to write; existing files are replaced.
        stale: relative names that an earlier run may have left and that are now removed.

    Raises:
        InputError: the folder can't be made or a file can't be written.
    """
    written = []
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
            written.append(path)
        for name in set(stale) - set(files):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            folder, f"cannot be written ({error.strerror})", "name another folder with --output"
        ) from None
    return written


def text(shown: Report | GateResult, name: str, written: Iterable[str] = ()) -> str:
    """A report or a gate's result in one format, on the terminal as wide and coloured as it is.

    Args:
        shown: what to show.
        name: of the format.
        written: files that hold more, which the terminal lists.
    """
    from mlxdoctor.formats import terminal
    from mlxdoctor.formats.format import text_of

    if name != "text":
        return text_of(shown, name)
    if isinstance(shown, GateResult):
        return terminal.render_gate(shown, width=width(), style=style, written=list(written))
    return terminal.render(shown, width=width(), style=style, written=list(written))


def is_coloured() -> bool:
    """Whether standard output is a terminal that wants colour (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def style(text: str, colour: str | None, bold: bool) -> str:
    """`text` with the escape sequences for a colour, on a terminal that wants them."""
    return click.style(text, fg=colour, bold=bold or None) if is_coloured() else text
