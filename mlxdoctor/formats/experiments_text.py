"""A reproduction on the terminal: the verdicts, what they rest on, and what they cost."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxdoctor.formats.escape import terminal
from mlxdoctor.formats.summary import changes, number, plain

#: (text, colour, whether it is bold) -> text with escape sequences, or as it is.
Style = Callable[[str, str | None, bool], str]
_COLOURS = {"confirmed": "green", "refuted": None, "undecided": "yellow"}
#: Columns of the word for a verdict.
_INDENT = 11
#: Lines are no longer than this, whatever the terminal (columns).
_WIDEST = 100


def render(data: Mapping[str, Any], written: Sequence[Path], width: int, style: Style) -> str:
    """What `mlxdoctor reproduce` prints.

    Args:
        data: the report's.
        written: its files.
        width: of the terminal, in columns.
        style: colours a text.
    """
    experiments = data["experiments"]
    verdicts = [one for one in experiments if one["experiment"] == "verdict"]
    width = min(width, _WIDEST)
    lines = [style(terminal(_headline(data, verdicts)), None, True)]
    lines += [""] if verdicts else []
    for one in verdicts:
        word = style(f"{one['verdict']:<{_INDENT}}", _COLOURS[one["verdict"]], True)
        lines.append(f"{word}{terminal(one['title'])} ({one['cause']})")
        # Not capitalised: it may begin with the name of a configuration key.
        lines += _wrapped(f"{one['reason']}.", width, _INDENT)
    if any(one["verdict"] == "confirmed" for one in verdicts):
        for change in changes(data):
            text = f"{change.key}: {plain(change.before)} -> {plain(change.after)}"
            lines += [f"{'cured by':<{_INDENT}}{terminal(text)}"]
    for one in experiments:
        if one["experiment"] == "minimization":
            lines += ["", *_wrapped(f"Configuration: {one['reason']}.", width, 0)]
        elif one["experiment"] == "agreement":
            lines += ["", *_wrapped(one["sentence"], width, 0)]
    lines += ["", _cost(experiments)]
    lines += [f"  {terminal(str(path))}" for path in written if path.suffix != ".png"]
    return "\n".join(lines) + "\n"


def _headline(data: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> str:
    if not verdicts:
        return f"{data['name']}: no known cause explains what was found; --cause tries one anyway."
    confirmed = [one for one in verdicts if one["verdict"] == "confirmed"]
    if confirmed:
        return f"{data['name']}: the cause is confirmed by experiment."
    return f"{data['name']}: no cause could be confirmed by experiment."


def _cost(experiments: Sequence[Mapping[str, Any]]) -> str:
    made = [one for one in experiments if "seconds" in one]
    iterations = sum(one["iterations"] for one in made)
    seconds = sum(one["seconds"] for one in made)
    count = f"{len(made)} experiment{'' if len(made) == 1 else 's'}"
    return f"{count}: {iterations:,} iterations, {number(round(seconds, 1))} seconds."


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    filled = textwrap.wrap(terminal(text), max(width - indent, 20), break_on_hyphens=False)
    return [" " * indent + line for line in filled]
