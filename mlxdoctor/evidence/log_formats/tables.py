"""Tables: CSV downloads and Markdown tables from issues and reports."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

from mlxdoctor.evidence.log_formats.names import STEPS, canonical, is_report, snake_case
from mlxdoctor.evidence.log_formats.segments import Rows
from mlxdoctor.evidence.log_formats.text import is_count, to_number

#: Lines among which the names of the columns and the first values are looked for.
HEADER_LINES = 20

_RULE = re.compile(r"^[\s|:+=-]*$")
_EXTREME = re.compile(r"__(?:MIN|MAX)$")


def csv_header(first_lines: Sequence[str]) -> tuple[list[str], str] | None:
    """The column names and the delimiter of a table of metrics, or None."""
    filled = [line for line in first_lines if line.strip()][:2]
    if len(filled) < 2:
        return None
    for delimiter in (",", "\t", ";"):
        names = _cells(filled[0], delimiter)
        values = _cells(filled[1], delimiter)
        if len(names) < 2 or len(values) != len(names):
            continue
        if any(to_number(name) is not None for name in names):
            continue
        lowered = [snake_case(name) for name in names]
        tensorboard = {"step", "value"} <= set(lowered)
        losses = any(is_report([canonical(_metric(name))]) for name in names)
        if (tensorboard or losses) and any(to_number(value) is not None for value in values):
            return names, delimiter
    return None


def read_csv(lines: str | Iterable[str], path: Path, rows: Rows) -> None:
    """Add a CSV table to `rows`. Columns `RUN - METRIC` become runs of their own.

    Reading ends where the quotes or cells of a damaged table can't be told apart any more.
    """
    lines = iter(lines.splitlines() if isinstance(lines, str) else lines)
    first = list(islice(lines, HEADER_LINES))
    found = csv_header(first)
    if found is None:
        return
    names, delimiter = found
    if {"step", "value"} <= {snake_case(name) for name in names}:
        names = [_tag(path) if snake_case(name) == "value" else name for name in names]
    lowered = [snake_case(name) for name in names]
    step = next((lowered.index(name) for name in STEPS if name in lowered), None)
    epoch = lowered.index("epoch") if "epoch" in lowered else None
    metrics = [
        (index, *_run_and_metric(name))
        for index, name in enumerate(names)
        if index != step and lowered[index] not in STEPS and not _EXTREME.search(name)
    ]
    # A run's own columns repeat the shared ones only where there is one run.
    several = len({run for _, run, _ in metrics if run}) > 0
    start = next(i for i, line in enumerate(first) if line.strip())
    table = csv.reader(chain(first[start + 1 :], lines), delimiter=delimiter)
    for number, cells in enumerate(_sound(table), start + 2):
        values = [to_number(cell) if cell else None for cell in cells]
        by_run: dict[str, dict[str, float]] = {}
        for index, run, name in metrics:
            value = values[index] if index < len(values) else None
            if value is not None and (run or not several):
                by_run.setdefault(run, {}).setdefault(name, value)
        counted = values[step] if step is not None and step < len(values) else None
        named = None
        if counted is not None and step is not None and is_count(counted):
            named = (lowered[step], counted)
        for run, row in by_run.items():
            if is_report(row) or (epoch is None and named is not None):
                rows.add(number, named, row, run)


class MarkdownReader:
    """Reads `| Step | loss |` tables, one line at a time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._names: list[str] = []
        self._last = -1
        self.read_rows = 0

    def read(self, number: int, line: str) -> bool:
        """Whether the line belongs to a table of metrics."""
        text = line.strip().lstrip("> ")
        if not (text.startswith("|") and text.count("|") >= 3):
            return False
        cells = [cell.strip().strip("*`_ ") for cell in text.strip("|").split("|")]
        values = [to_number(cell) for cell in cells]
        follows = number == self._last + 1
        if _RULE.match(text):
            self._last = number if follows else self._last
            return follows
        if not follows or (not self._names and all(value is None for value in values)):
            self._names = cells if any("loss" in cell.lower() for cell in cells) else []
            self._last = number if self._names else self._last
            return bool(self._names)
        self._last = number
        if not self._names or all(value is None for value in values):
            return bool(self._names)
        for run, named, row in self._runs(values):
            if row:
                self._rows.add(number, named, row, run)
                self.read_rows += 1
        return True

    def _runs(
        self, values: Sequence[float | None]
    ) -> Iterator[tuple[str, tuple[str, float] | None, dict[str, float]]]:
        lowered = [snake_case(name) for name in self._names]
        # A row may have more cells than the header.
        cells = dict(enumerate(values[: len(self._names)]))
        step = next((lowered.index(name) for name in (*STEPS, "epoch") if name in lowered), None)
        counted = cells.get(step) if step is not None else None
        if step is None or counted is None or not is_count(counted):
            yield "", None, {lowered[i]: value for i, value in cells.items() if value is not None}
            return
        prefixes = [
            name[: -len("loss")].rstrip(" \t_/-").strip()
            for name in self._names
            if name.lower().endswith("loss") and canonical(name) not in ("train_loss", "val_loss")
        ]
        named = (lowered[step], counted)
        rest = dict(cells)
        rest.pop(step)
        for prefix in prefixes:
            row: dict[str, float] = {}
            for index, name in enumerate(self._names):
                if (
                    index != step
                    and name.startswith(prefix)
                    and (value := rest.pop(index, None)) is not None
                ):
                    row[canonical(name[len(prefix) :])] = value
            yield prefix, named, row
        row = {canonical(self._names[i]): value for i, value in rest.items() if value is not None}
        if is_report(row):
            yield "", named, row


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(_sound(csv.reader([line], delimiter=delimiter)), [])]


def _sound(table: Iterator[list[str]]) -> Iterator[list[str]]:
    # A quote that nothing closes makes one cell of the rest.
    with suppress(csv.Error):
        yield from table


def _metric(name: str) -> str:
    return name.rsplit(" - ", 1)[-1]


def _run_and_metric(name: str) -> tuple[str, str]:
    run, _, metric = name.rpartition(" - ")
    return run.strip(), canonical(metric)


def _tag(path: Path) -> str:
    """What a TensorBoard download holds: its file is named after run and tag."""
    name = canonical(re.split(r"tag-", path.stem)[-1])
    if re.search(r"(?:^|_)(?:val|valid|validation|eval)(?:_|$)", name):
        return "val_loss" if "loss" in name else name
    for known in ("learning_rate", "lr", "grad_norm", "epoch", "accuracy"):
        if known in name.split("_") or known in name:
            return canonical(known)
    return "train_loss"
