"""Tables: a line of names, and lines of figures below it.

`step,loss,lr` of trainers and W&B, with commas, semicolons or tabs; `| Step | loss |`
in Markdown or drawn with lines; and columns that blanks hold together.
"""

import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar
from mlxdoctor.evidence.logs.metric_names import (
    HELD_OUT_SCORE,
    KNOWN,
    STEPS,
    canonical,
    in_english,
    is_report,
    snake_case,
    unique,
)
from mlxdoctor.evidence.logs.text_stream import is_count, to_number

#: The lines of drawn tables, as Markdown has them.
_DRAWN = str.maketrans(
    {
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("━─═╌┄", "-"),
        **dict.fromkeys("┏┓┗┛┡┩┢┪┣┫┝┥┠┨╇╈┳┻╋┼├┤┬┴└┘┌┐╭╮╰╯╪╞╡╤╧╔╗╚╝╠╣╦╩╬╥╨╫╟╢╒╕╘╛", "+"),
    }
)
_OPENINGS = frozenset("|>│┃║┡├╞╠+┣┝┢")
_RULE = re.compile(r"^[\s|:+=-]*$")
_GAP = re.compile(r"\s{2,}|\t")
_FIGURE = re.compile(r"(?<![\w.-])\d")
_VALUE = re.compile(r"[a-z] \d+\.\d+$")
_EXTREME = re.compile(r"__(?:MIN|MAX)$")


@dataclass(frozen=True)
class _Head:
    """What is in the columns of a table.

    Attributes:
        delimiter: what stands between the cells; "" for blanks.
        size: how many columns there are.
        step: index and name of the column that counts updates.
        metrics: index, run and name of the others.
    """

    delimiter: str
    size: int
    step: tuple[int, str] | None
    metrics: tuple[tuple[int, str, str], ...]


class Columns(LineFormat):
    """A table of metrics in a log. Columns `RUN - METRIC` are of several runs."""

    name = "columns"
    priority = 70
    understood = "tables (CSV, Markdown, columns of blanks) with a step and a loss"
    example = "| Step | Training Loss |\n|---|---|\n| 10 | 2.5 |\n| 20 | **2.25** |\n"

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._head: _Head | None = None
        self._last = -1
        self._is_bare = False

    def read(self, number: int, line: str) -> bool:
        text, follows = line.strip(), number == self._last + 1
        is_bare = " | " in text and not text.startswith("|")
        # Markdown may leave out the signs at both ends.
        if is_bare and (not _FIGURE.search(text) or (self._is_bare and follows)):
            text = f"| {text} |"
        if text[:1] in _OPENINGS:
            text = text.lstrip("> ").translate(_DRAWN)
            if follows and _RULE.match(text):
                self._last = number
                return True
        is_drawn = text.startswith("|") and text.count("|") >= 3
        head = self._head
        is_open = head is not None and is_drawn == (head.delimiter == "|")
        if head and is_open and (follows or not is_drawn) and self._is_row(number, text, head):
            self._last = number
            return True
        named = text if text.isascii() else in_english(text)
        head = _meaning(_cells(named, "|"), "|") if is_drawn else _plain_head(number, named)
        if head is not None:
            self._head, self._last, self._is_bare = head, number, is_bare
        return head is not None

    def _is_row(self, number: int, text: str, head: _Head) -> bool:
        cells = _cells(text, head.delimiter)
        if not head.delimiter and len(cells) == head.size + 1 and cells[0].isdigit():
            # A data frame counts its rows in front of them, and prints NaN where it has nothing.
            cells = ["" if cell == "NaN" else cell for cell in cells[1:]]
        if head.delimiter != "|" and not 1 < len(cells) == head.size:
            return False
        values = [to_number(cell) for cell in cells]
        step = None
        if head.step is not None:
            counted = values[head.step[0]] if head.step[0] < len(values) else None
            # Parts of an epoch count nothing: the rows are only ordered.
            is_part = head.step[1] == "epoch" and "." in cells[head.step[0]]
            if counted is None or not (is_part or is_count(counted)):
                return head.delimiter == "|"
            step = None if is_part else (head.step[1], counted)
        runs: dict[str, dict[str, float]] = {}
        for index, run, name in head.metrics:
            if index < len(values) and (value := values[index]) is not None:
                runs.setdefault(run, {})[name] = value
        for run, metrics in runs.items():
            self.add(number, step, metrics, run)
        return head.delimiter == "|" or bool(runs)


def _plain_head(number: int, text: str) -> _Head | None:
    """The meaning of a line of names with commas, semicolons, tabs or blanks between them."""
    # A wide data frame goes on in further lines behind it.
    text = text.removesuffix("\\").rstrip()
    if ":" in text or "=" in text or _FIGURE.search(text):
        return None
    for delimiter in (",", ";", "\t", ""):
        if delimiter and delimiter not in text:
            continue
        names = _cells(text, delimiter) if delimiter else _GAP.split(text)
        if len(names) < 2:
            continue
        head = _meaning(names, delimiter)
        # Without a step it may be a sentence, save where the log begins with it.
        if head is not None and (head.step is not None or (delimiter and number == 1)):
            return head
    return None


def _meaning(names: Sequence[str], delimiter: str) -> _Head | None:
    """What columns with these names hold; None where none of them is of a training."""
    split = [(run.strip(), metric) for run, _, metric in (n.rpartition(" - ") for n in names)]
    lowered = [snake_case(name) for name in names]
    # Two splits side by side are their losses.
    are_splits = {"train_loss", "val_loss"} <= {*unique(map(canonical, names), names)}
    # The epochs of a trainer's own table may be parts of one.
    counters = (*STEPS, "epoch") if delimiter in ("", "|") else STEPS
    step = next((lowered.index(name) for name in counters if name in lowered), None)
    told = (canonical(metric) for _, metric in split)
    if not are_splits and not is_report(told, counted=step is not None):
        return None
    if delimiter == "|":
        if step is None:
            # It is no curve: the names stay as they are.
            # Nor is a line of names with their values.
            is_named = any("loss" in name for name in lowered)
            if not is_named or any(to_number(name) or _VALUE.search(name) for name in names):
                return None
            courses = {"train_loss", "val_loss", *filter(HELD_OUT_SCORE.fullmatch, lowered)}
            metrics = tuple(
                (index, "", f"{name}_by_row" if name in courses else name)
                for index, name in enumerate(lowered)
            )
            return _Head("|", len(names), None, metrics)
        split = _side_by_side(names)
    columns = [
        (index, *split[index])
        for index, name in enumerate(lowered)
        if index != step and name not in STEPS and not _EXTREME.search(names[index])
    ]
    if any(run for _, run, _ in columns):
        # A run's own columns repeat the shared ones.
        metrics = tuple((index, run, canonical(name)) for index, run, name in columns if run)
    else:
        own = [name for *_, name in columns]
        called = unique(map(canonical, own), own)
        metrics = tuple(
            (index, run, name or raw)
            for (index, run, raw), name in zip(columns, called, strict=True)
            # The `train_loss` beside a `loss` is a trainer's closing mean.
            if name is not None or snake_case(raw) not in called
        )
    return _Head(delimiter, len(names), None if step is None else (step, lowered[step]), metrics)


def _side_by_side(names: Sequence[str]) -> list[tuple[str, str]]:
    """Run and metric of each column: `CUDA main loss` and `CUDA main grad` are of one run."""
    runs = [
        name[: -len("loss")].rstrip(" \t_/-")
        for name in names
        if name.lower().endswith("loss") and canonical(name) not in KNOWN
    ]
    owners = [next((run for run in runs if run and name.startswith(run)), "") for name in names]
    return [(run, name[len(run) :]) for run, name in zip(owners, names, strict=True)]


def _cells(text: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        # Without the marks of Markdown.
        return [cell.strip().strip("*`_ ") for cell in text.strip("|").split("|")]
    if not delimiter:
        return text.split()
    if '"' in text:
        # A quote that nothing closes makes one cell of the rest.
        with suppress(csv.Error):
            return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter))]
    return [cell.strip() for cell in text.split(delimiter)]
