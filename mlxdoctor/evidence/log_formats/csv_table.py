"""Tables of comma-separated values: downloads from W&B and TensorBoard, and trainers' own."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from mlxdoctor.evidence.logs.lines import is_count, to_number
from mlxdoctor.evidence.logs.log_format import HEAD_LINES, WholeFormat
from mlxdoctor.evidence.logs.metric_names import STEPS, canonical, is_report, snake_case, unique
from mlxdoctor.evidence.logs.shapes import Nature

_EXTREME = re.compile(r"__(?:MIN|MAX)$")
_OF_VALIDATION = re.compile(r"(?:^|_)(?:val|valid|validation|eval)(?:_|$)")
#: What TensorBoard's tags are known by besides losses.
_TAGS = ("learning_rate", "lr", "grad_norm", "epoch", "accuracy")


class CsvTable(WholeFormat):
    """A table with a step and a loss. Columns `RUN - METRIC` become runs of their own."""

    name = "CSV"
    priority = 60
    understood = "CSV with a step and a loss"
    example = "step,loss,lr\n1,2.5,1e-5\n2,nan,1e-5\n"
    grows = True

    def begins(self, head: str) -> bool:
        """Names of columns, and figures below them."""
        return _header(head.splitlines()[:HEAD_LINES]) is not None

    def read(self, texts: Iterator[str]) -> None:
        """Read it to where the quotes or cells of a damaged table can't be told apart any more."""
        lines = (line for text in texts for line in text.splitlines())
        first = list(islice(lines, HEAD_LINES))
        if (found := _header(first)) is None:
            return
        names, delimiter = found
        columns = _Columns.of(names, self.log.path)
        start = next(i for i, line in enumerate(first) if line.strip()) + 1
        table = _sound(csv.reader(chain(first[start:], lines), delimiter=delimiter))
        for number, cells in enumerate(table, start + 1):
            step = columns.step_of(cells)
            for run, row in columns.runs_of(cells).items():
                if is_report(row) or (step is not None and not columns.has_epochs):
                    self.add(number, step, row, run, nature=Nature.TABLE)


@dataclass(frozen=True)
class _Columns:
    """What is in the columns.

    Attributes:
        step: index and name of the one that counts updates.
        metrics: index, run and name of the others.
        has_epochs: whether one of them counts epochs.
    """

    step: tuple[int, str] | None
    metrics: tuple[tuple[int, str, str], ...]
    has_epochs: bool

    @classmethod
    def of(cls, names: Sequence[str], path: Path) -> _Columns:
        """The meaning of a header's names."""
        if _is_tensorboard(names):
            names = [_tag(path) if snake_case(name) == "value" else name for name in names]
        lowered = [snake_case(name) for name in names]
        step = next((name for name in STEPS if name in lowered), None)
        metrics = [
            (index, *_run_and_metric(name))
            for index, name in enumerate(names)
            if lowered[index] not in STEPS and not _EXTREME.search(name)
        ]
        # A run's own columns repeat the shared ones.
        of_runs = [one for one in metrics if one[1]]
        if not of_runs:
            called = unique([name for *_, name in metrics], [name for *_, name in metrics])
            metrics = [
                (index, run, name or own)
                for (index, run, own), name in zip(metrics, called, strict=True)
            ]
        return cls(
            None if step is None else (lowered.index(step), step),
            tuple(of_runs or metrics),
            "epoch" in lowered,
        )

    def step_of(self, cells: Sequence[str]) -> tuple[str, float] | None:
        """The step column's name and value in a row, where it is a count."""
        if self.step is None:
            return None
        index, name = self.step
        counted = _number(cells, index)
        return (name, counted) if counted is not None and is_count(counted) else None

    def runs_of(self, cells: Sequence[str]) -> dict[str, dict[str, float]]:
        """Run -> metric -> value in a row."""
        by_run: dict[str, dict[str, float]] = {}
        for index, run, name in self.metrics:
            if (value := _number(cells, index)) is not None:
                by_run.setdefault(run, {}).setdefault(name, value)
        return by_run


def _header(first_lines: Sequence[str]) -> tuple[list[str], str] | None:
    """The column names and the delimiter of a table of metrics, or None."""
    filled = [line for line in first_lines if line.strip()][:2]
    if len(filled) < 2:
        return None
    for delimiter in (",", "\t", ";"):
        names, values = (_cells(line, delimiter) for line in filled)
        if len(names) < 2 or len(values) != len(names):
            continue
        has_names = not any(to_number(name) is not None for name in names)
        has_values = any(to_number(value) is not None for value in values)
        reports = is_report(_run_and_metric(name)[1] for name in names)
        if has_names and has_values and (reports or _is_tensorboard(names)):
            return names, delimiter
    return None


def _is_tensorboard(names: Sequence[str]) -> bool:
    return {"step", "value"} <= {snake_case(name) for name in names}


def _number(cells: Sequence[str], index: int) -> float | None:
    """The number in a cell; None where there is none, or the row ends before it."""
    return to_number(cells[index]) if index < len(cells) and cells[index] else None


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(_sound(csv.reader([line], delimiter=delimiter)), [])]


def _sound(table: Iterator[list[str]]) -> Iterator[list[str]]:
    # A quote that nothing closes makes one cell of the rest.
    with suppress(csv.Error):
        yield from table


def _run_and_metric(name: str) -> tuple[str, str]:
    run, _, metric = name.rpartition(" - ")
    return run.strip(), canonical(metric)


def _tag(path: Path) -> str:
    """What a TensorBoard download holds: its file is named after run and tag."""
    name = canonical(re.split(r"tag-", path.stem)[-1])
    if _OF_VALIDATION.search(name):
        return "val_loss" if "loss" in name else name
    return next((canonical(known) for known in _TAGS if known in name), "train_loss")
