"""What a log format is, and what formats share while one log is read.

A format is a class in a module of `mlxdoctor/evidence/log_formats`: a `LineFormat` is asked about
one line at a time, a `DocumentFormat` about a log that is one JSON document. It turns what it
reads into rows. Whoever reads logs, `diagnose`, `watch` or the fuzzing, finds it there.
"""

import inspect
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.logs.series import Axis, Notes
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.user_failure import failure_of
from mlxdoctor.tables import modules_of, shipped

T = TypeVar("T")

#: What a row reports on.
TRAIN, VALIDATION, OTHER = 0, 1, 2
#: Patterns that like lines are read by.
MAX_PATTERNS = 6
#: What a number may be made of, in such a pattern. Never given back: `1-1-1-1` could be divided
#: in too many ways.
LIKE_NUMBER = r"[-+0-9.eEnaNifINFty]++"


def messages(table: str) -> dict[str, re.Pattern[str]]:
    """A table of `log_formats/messages.toml`: name -> a pattern for any of its lines."""
    listed = shipped("mlxdoctor.evidence.log_formats", "messages.toml")[table]
    return {name: re.compile("|".join(patterns)) for name, patterns in listed.items()}


def axis_of(step_name: str | None) -> Axis:
    """The axis a step column counts: None means that the rows are only ordered."""
    if step_name in ("iteration", "iter", "it"):
        return "iteration"
    return "row" if step_name is None else "epoch" if step_name == "epoch" else "step"


class Nature(StrEnum):
    """What kind of row it is, where that decides how it joins the others.

    Attributes:
        PLAIN: a report by itself.
        EPOCH: what is said once an epoch; where something is reported more often, it is told
            apart from that.
        BESIDE: of validation, of the update that was named last; it shows no log by itself.
        FALLBACK: a report where nothing else in the log reports a loss.
        MARK: no report: where an epoch begins.
    """

    PLAIN = "plain"
    EPOCH = "epoch"
    BESIDE = "beside"
    FALLBACK = "fallback"
    MARK = "mark"


@dataclass
class Shape:
    """Rows that carry the same metrics in the same order.

    Attributes:
        columns: the metric of each value; None for a value that is not one.
        step: index of the value that counts updates, or None.
        run: the run's name where several stand side by side.
        nature: how its rows join those of others.
        lines: line number of each row.
        values: the values of all rows, row after row.
        of_epoch: how many updates its rows say that an epoch has; 0 where they say none.
    """

    columns: tuple[str | None, ...]
    step: int | None
    axis: Axis = "iteration"
    run: str = ""
    nature: Nature = Nature.PLAIN
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    of_epoch: float = 0.0

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, line: int, row: Sequence[float]) -> None:
        """Add a row that stands in a line."""
        self.values.extend(row)
        self.lines.append(line)

    @property
    def table(self) -> NDArray[np.float64]:
        """The rows, float64 (rows, columns)."""
        return np.array(self.values, np.float64).reshape(len(self.lines), len(self.columns))

    @property
    def role(self) -> int:
        """What its rows report on: TRAIN, VALIDATION or OTHER."""
        if "train_loss" in self.columns:
            return TRAIN
        return VALIDATION if "val_loss" in self.columns else OTHER


@dataclass(frozen=True)
class LogSoFar:
    """What was read of one log.

    Attributes:
        notes: what it says beside its rows.
        patterns: of lines that were understood and of the end of the line before, with the shape
            that their values go into and the format that understood them; the one that was
            needed last stands first.
    """

    path: Path
    notes: Notes = field(default_factory=Notes)
    by_form: dict[tuple[object, ...], Shape] = field(default_factory=dict)
    patterns: list[tuple[re.Pattern[str], Shape, "LogFormat"]] = field(default_factory=list)

    def shape(
        self,
        columns: tuple[str | None, ...],
        step: int | None,
        axis: Axis = "iteration",
        *,
        run: str = "",
        nature: Nature = Nature.PLAIN,
    ) -> Shape:
        """The shape with these columns; rows are appended to it."""
        key = (columns, step, axis, run, nature)
        return self.by_form.setdefault(key, Shape(*key))

    @property
    def shapes(self) -> list[Shape]:
        """Those that have a row, the fallbacks only where nothing else reports a loss."""
        shapes = [shape for shape in self.by_form.values() if len(shape)]
        better = [shape for shape in shapes if shape.nature is not Nature.FALLBACK]
        return better if any(shape.role == TRAIN for shape in better) else shapes

    def is_full(self) -> bool:
        """Whether a limit is reached, after which nothing more is collected; noted as a problem."""
        limits, problems = current(), self.notes.problems
        held: list[Sized] = [*self.by_form.values()]
        held += (each for each in vars(self.notes).values() if isinstance(each, list))
        if sum(map(len, held)) > limits.log_rows:
            problems.append(exceeded(self.path, "holds more reports", "log_rows"))
        elif len(self.by_form) > limits.log_forms:
            problems.append(exceeded(self.path, "holds more kinds of report", "log_forms"))
        else:
            return False
        return True

    def unlike(self, numbers: Sequence[int], lines: Sequence[str]) -> Iterator[tuple[int, str]]:
        """The lines that look like none which was understood; all others are now rows.

        Most lines of most logs look like one before: a pattern reads all of them at once.
        """
        # Rows whose lines have one number, as where a progress bar is redrawn, stay in order.
        most = len(lines) if len(set(numbers)) == len(lines) else 1
        begin, size = 0, 1
        while begin < len(lines):
            chosen = slice(begin, begin + size)
            left = self._left(numbers[chosen], lines[chosen])
            begin, size = begin + size, min(2 * size, most)
            for place, (number, line) in enumerate(left, 1):
                known = self.patterns[:1]
                yield number, line
                if self.patterns[:1] != known:
                    # What was learned from this line may hold for the next.
                    numbers = [*(number for number, _ in left[place:]), *numbers[begin:]]
                    lines = [*(line for _, line in left[place:]), *lines[begin:]]
                    begin, size = 0, 1
                    break

    def _left(self, numbers: Sequence[int], lines: Sequence[str]) -> list[tuple[int, str]]:
        """The lines that match no pattern; the others become rows."""
        for entry in tuple(self.patterns):
            pattern, shape, reader = entry
            # In turn what stands between two lines that match, and the numbers of the second.
            parts = pattern.split("\n".join(["", *lines]))
            between = parts[:: pattern.groups + 1]
            del parts[:: pattern.groups + 1]
            if not parts:
                continue
            try:
                values = np.array(parts, np.float64)
            except ValueError:
                # One of them is no number: the line it stands in is left in the end.
                if half := len(lines) // 2:
                    first = self._left(numbers[:half], lines[:half])
                    return first + self._left(numbers[half:], lines[half:])
                continue
            is_row, place = bytearray(b"\1") * len(lines), 0
            for text in between:
                if text:
                    count = text.count("\n")
                    is_row[place : place + count] = bytes(count)
                    place += count
                place += 1
            shape.values.frombytes(values.tobytes())
            shape.lines.extend(compress(numbers, is_row))
            reader.count += len(between) - 1
            self.patterns.remove(entry)
            self.patterns.insert(0, entry)
            left = [place for place, taken in enumerate(is_row) if not taken]
            numbers, lines = [numbers[place] for place in left], [lines[place] for place in left]
        return [*zip(numbers, lines, strict=True)]


class LogFormat(ABC):
    """One format, as it reads one log.

    Attributes:
        name: what `TrainingLog.format` calls it; empty for lines that are no reports.
        understood: what it reads, for the user whose file nothing can be read from.
        example: a log in which it finds every row, for the tests and the fuzzing.
        count: how many lines or reports it read.
        has_failed: whether one of its methods has raised.
    """

    name: ClassVar[str] = ""
    priority: ClassVar[int]
    understood: ClassVar[str] = ""
    example: ClassVar[str]

    def __init__(self, log: LogSoFar) -> None:
        self.log, self.notes = log, log.notes
        self.count = 0
        self.has_failed = False

    def guarded(self, method: Callable[..., T], *arguments: Any) -> T | None:
        """What one of its methods returns; None if that raises, which is noted the first time."""
        try:
            return method(*arguments)
        except MemoryError:
            raise
        except Exception as error:  # one format's bug must not hide what the others read
            if not self.has_failed:
                self.has_failed = True
                name = self.name or type(self).__name__
                problem = f"the log format {name} failed on it ({failure_of(error).sentence})"
                remedy = "the rest was read; please report it as a bug"
                self.notes.problems.append(InputError(self.log.path, problem, remedy))
            return None

    def add(
        self, line: int, step: tuple[str, float] | None, metrics: dict[str, float], run: str = ""
    ) -> None:
        """One report.

        Args:
            line: the number of its line.
            step: name and value of what counts updates; None where the line names no such thing.
            metrics: canonical name -> value.
            run: the run's name where several stand side by side.
        """
        columns: tuple[str | None, ...] = tuple(metrics)
        values, place = list(metrics.values()), None
        if step is not None:
            columns, values, place = (None, *columns), [step[1], *values], 0
        axis = axis_of(None if step is None else step[0])
        self.log.shape(columns, place, axis, run=run).append(line, values)
        self.count += 1

    def note_count(self) -> None:
        """Note how many lines or reports it read, at the end of the log."""
        if self.name and self.count:
            self.notes.formats[self.name] += self.count

    def learn(self, pattern: re.Pattern[str], shape: Shape) -> None:
        """Have lines that match a pattern read into a shape, its groups being the values."""
        patterns, whole = self.log.patterns, re.compile(rf"\n{pattern.pattern}$", re.MULTILINE)
        patterns[:] = [entry for entry in patterns if entry[0] is not whole]
        patterns.insert(0, (whole, shape, self))
        del patterns[MAX_PATTERNS:]


class LineFormat(LogFormat):
    """A format of single lines, which stand among those of other formats."""

    @abstractmethod
    def read(self, number: int, line: str) -> bool:
        """Whether the line, which has no colours and is not empty, is of this format.

        It is read then, and no other format is asked about it.
        """

    def finish(self) -> None:
        """Read what is left: the log ends here."""


class DocumentFormat(LogFormat):
    """A format of logs that are one JSON document, which a trainer writes anew at every save."""

    @abstractmethod
    def read(self, document: Any) -> str | None:
        """Read the document's reports.

        Returns:
            None where it is not of this format; else the text in it that is a log of lines.
        """


F = TypeVar("F", bound=LogFormat)


@cache
def formats(kind: type[F]) -> tuple[type[F], ...]:
    """Every format of a kind, in the order in which they are asked."""
    classes = {
        member
        for module in modules_of("mlxdoctor.evidence.log_formats")
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, kind) and hasattr(member, "priority")
    }
    return tuple(sorted(classes, key=lambda member: member.priority))
