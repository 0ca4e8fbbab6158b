"""What a log format is, how formats are found, and what they share while one log is read.

A format is a class in a module of `mlxdoctor/evidence/log_formats`: a `LineFormat` is asked about
one line at a time, a `WholeFormat` takes a log that is one document or one table. Whoever reads
logs, `diagnose`, `watch` or the fuzzing, finds it there.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeVar

from mlxdoctor.evidence.logs.frames import Frames
from mlxdoctor.evidence.logs.series import Notes
from mlxdoctor.evidence.logs.shapes import Nature, Rows, Shape, axis_of
from mlxdoctor.members import modules_of
from mlxdoctor.safety.reading_limits import current, exceeded

#: Lines at the beginning of a log that show whether it is a table that grows.
HEAD_LINES = 20
#: Lines between two looks at how much was collected.
LINES_BETWEEN = 4096
#: Patterns that like lines are read by.
MAX_PATTERNS = 6
#: What a number may be made of, in such a pattern. Never given back: `1-1-1-1` could be divided
#: in too many ways.
LIKE_NUMBER = r"[-+0-9.eEnaNifINFty]++"


class LogFormat(ABC):
    """One format, as it reads one log.

    Attributes:
        name: what `TrainingLog.format` calls it; empty for lines that are no reports.
        priority: the format with the smallest is asked first.
        understood: what it reads, for the user whose file nothing can be read from.
        example: a log in which it finds every row, for the tests and the fuzzing.
        count: how many lines or reports it read.
    """

    name: ClassVar[str] = ""
    priority: ClassVar[int]
    understood: ClassVar[str] = ""
    example: ClassVar[str]

    def __init__(self, log: LogSoFar) -> None:
        self.log = log
        self.rows, self.notes = log.rows, log.notes
        self.count = 0

    def add(
        self,
        line: int,
        step: tuple[str, float] | None,
        metrics: dict[str, float],
        run: str = "",
        *,
        fallback: bool = False,
        nature: Nature = Nature.PLAIN,
    ) -> None:
        """One report.

        Args:
            line: the number of its line.
            step: name and value of what counts updates; None where the line names no such thing.
            metrics: canonical name -> value.
            run: the run's name where several stand side by side.
            fallback: whether it counts only where nothing else in the log reports a loss.
            nature: how it joins the others.
        """
        columns: tuple[str | None, ...] = tuple(metrics)
        values, place = tuple(metrics.values()), None
        if step is not None:
            columns, values, place = (*columns, None), (*values, step[1]), len(metrics)
        axis = axis_of(None if step is None else step[0])
        shape = self.rows.shape(columns, place, axis, run=run, fallback=fallback, nature=nature)
        shape.values.append(values)
        shape.lines.append(line)
        self.count += 1


class LineFormat(LogFormat):
    """A format of single lines, which stand among those of other formats.

    Lines of one or two characters say nothing by themselves: it gets them while it `is_open`.

    Attributes:
        takes_long_lines: whether it gets lines beyond the limit `line_characters` as they are,
            before those that get them cut are asked.
    """

    takes_long_lines: ClassVar[bool] = False

    @abstractmethod
    def read(self, number: int, line: str) -> bool:
        """Whether the line, which has no colours and is not empty, is of this format.

        It is read then, and no other format is asked about it.
        """

    @property
    def is_open(self) -> bool:
        """Whether a line of one or two characters may end what was begun, or go on with it."""
        return False

    def catch_up(self) -> None:
        """Read what was put off, to be read together; what is begun stays open."""

    def finish(self) -> None:
        """Read what is left: the log ends here."""

    def learn(self, pattern: re.Pattern[str], shape: Shape) -> None:
        """Have lines that match a pattern read into a shape, its groups being the values."""
        self.log.alike.learn(pattern, shape, self)


class WholeFormat(LogFormat):
    """A format of a whole log.

    Attributes:
        grows: whether a training adds rows at its end, so that its first line above any of the
            rows is a log as well; False for one that is written anew at every save.
        marks: words that nothing but such a log has in it: they show it where a part is seen.
    """

    grows: ClassVar[bool]
    marks: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def begins(self, head: str) -> bool:
        """Whether a log that begins so (no blanks before it) may be of this format."""

    @abstractmethod
    def read(self, texts: Iterator[str]) -> Iterator[str] | None:
        """Read the log, in pieces that each end where a line does.

        Returns:
            None where it was read; else the whole text again, for other formats.
        """


F = TypeVar("F", bound=LogFormat)


@cache
def formats(kind: type[F]) -> tuple[type[F], ...]:
    """Every format of a kind, in the order in which they are asked."""
    found: set[type[F]] = set()
    for module in modules_of("mlxdoctor.evidence.log_formats"):
        classes = filter(inspect.isclass, vars(module).values())
        found |= {one for one in classes if issubclass(one, kind) and not inspect.isabstract(one)}
    return tuple(sorted(found, key=lambda one: one.priority))


class Alike:
    """Reads the lines that look like one which a format understood.

    Most lines of most logs look like the ones before: a pattern reads them ten times faster.
    """

    def __init__(self) -> None:
        self._known: list[tuple[re.Pattern[str], Shape, LogFormat]] = []
        self._is_regular = True

    def learn(self, pattern: re.Pattern[str], shape: Shape, reader: LogFormat) -> None:
        """Know one more pattern; of many, those that were needed last."""
        others = [one for one in self._known if one[0] is not pattern]
        self._known = [(pattern, shape, reader), *others][:MAX_PATTERNS]

    def read(self, number: int, line: str) -> bool:
        """Whether the line looks like one that was understood, and is now a row, too."""
        for place, (pattern, shape, reader) in enumerate(self._known):
            if match := pattern.fullmatch(line):
                try:
                    shape.values.append(tuple(map(float, match.groups())))
                except ValueError:
                    return False
                shape.lines.append(number)
                reader.count += 1
                if place:
                    self._known.insert(0, self._known.pop(place))
                return True
        return False

    def read_all(self, numbered: Sequence[tuple[int, str]]) -> bool:
        """Whether all lines look like the last that was understood, and are now rows.

        Once they don't, it is not tried again: a log with validations between has few such
        stretches.
        """
        if not (self._known and self._is_regular):
            return False
        pattern, shape, reader = self._known[0]
        every = re.compile(f"^{pattern.pattern}$", re.MULTILINE)
        found = every.findall("\n".join(line for _, line in numbered))
        self._is_regular = len(found) == len(numbered) and every.groups > 1
        if not self._is_regular:
            return False
        try:
            values = [tuple(map(float, groups)) for groups in found]
        except ValueError:
            return False
        shape.values.extend(values)
        shape.lines.extend(number for number, _ in numbered)
        reader.count += len(numbered)
        return True


@dataclass(frozen=True)
class LogSoFar:
    """What was read of one log.

    Attributes:
        path: its name: a TensorBoard download is named after what it holds.
        rows: the reports.
        notes: what it says beside them.
        alike: the patterns of lines that were understood.
        frames: of the traceback that is being read.
    """

    path: Path
    rows: Rows = field(default_factory=Rows)
    notes: Notes = field(default_factory=Notes)
    alike: Alike = field(default_factory=Alike)
    frames: Frames = field(default_factory=Frames)

    def is_full(self) -> bool:
        """Whether a limit is reached, after which nothing more is collected; noted as a problem."""
        limits = current()
        self.rows.compact()
        if len(self.rows) + self.notes.size > limits.log_rows:
            self.notes.problems.append(exceeded(self.path, "holds more reports", "log_rows"))
        elif self.rows.forms > limits.log_forms:
            self.notes.problems.append(
                exceeded(self.path, "holds more kinds of report", "log_forms")
            )
        else:
            return False
        return True

    def until_full(self, texts: Iterator[str]) -> Iterator[str]:
        """The text, in smaller pieces, up to where a limit is reached."""
        for text in texts:
            lines = text.splitlines(keepends=True)
            for start in range(0, len(lines), LINES_BETWEEN):
                if self.is_full():
                    return
                yield "".join(lines[start : start + LINES_BETWEEN])
