"""A log while it is being written: read anew, as `diagnose` reads it, whenever it has changed."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.logs.reader import read_log
from mlxdoctor.evidence.logs.series import LogFailure, Segment
from mlxdoctor.evidence.logs.text_stream import LogStream
from mlxdoctor.evidence.source import require_file, unreadable
from mlxdoctor.watch.monitor import LogRow

#: Modification time (ns), size (bytes) and number of a file: they change when it is written.
Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class LogState:
    """What a log says by now.

    Attributes:
        run: the newest one with training losses, or without where none has them.
        saves: iterations of the saves that were reported.
        failure: why the training broke off, where the log says that after its last report.
        begins_anew: whether the trainer announced a start after the last report.
        problems: why the log was not read to its end, or not by every format, a sentence each.
    """

    run: Segment | None = None
    saves: tuple[int, ...] = ()
    failure: LogFailure | None = None
    begins_anew: bool = False
    problems: tuple[str, ...] = ()


def rows_of(run: Segment) -> list[LogRow]:
    """The reports of a run in order: what it says of one iteration is one row.

    Where several losses have the same number, those of an epoch say, each is a row, and what is
    reported less often stands with the last of them.
    """
    # By step and place: 0 for the last of a step, -1 for the one before.
    rows: defaultdict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for name, series in run.series.items():
        after = Counter[int]()
        for step, value in zip(
            series.iterations[::-1].tolist(), series.values[::-1].tolist(), strict=True
        ):
            rows[step, -after[step]][name] = value
            after[step] += 1
    return [LogRow(step, rows[step, place]) for step, place in sorted(rows)]


class GrowingLog:
    """A file that grows, that may not be there yet, and that may be replaced or cut.

    Args:
        path: the file.
        since: seconds since the epoch: what was last written before is passed over.

    Raises:
        InputError: the path is a folder, a device or a pipe, or can't be read.
    """

    def __init__(self, path: Path, since: float | None = None) -> None:
        self.path = path
        self._old: Stamp | None = None
        self._old_lines = 0
        if (stamp := self.stamp()) is None:
            return
        require_file(path)
        if stamp[1] and since is not None and stamp[0] < since * 1e9:
            self._old = stamp
            self._old_lines = sum(text.count("\n") for text in LogStream(path))

    def stamp(self) -> Stamp | None:
        """What changes when the log is written; None where it is not there yet."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(self.path, error) from None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def read(self, stamp: Stamp, *, is_whole: bool) -> LogState:
        """What the log says by now.

        Args:
            stamp: its own.
            is_whole: whether its last line is read, too, if that has no end.

        Raises:
            InputError: it can't be read, or is binary, or beyond a limit.
        """
        if not stamp[1]:
            return LogState()
        if self._old is not None and (stamp[2] != self._old[2] or stamp[1] < self._old[1]):
            self._old, self._old_lines = None, 0
        texts = _without_lines(iter(LogStream(self.path)), self._old_lines)
        segments, notes = read_log(texts if is_whole else _ended(texts), self.path)
        trained = [segment for segment in segments if segment.get("train_loss") is not None]
        run = next(reversed(trained or segments), None)
        last_line = run.last_line if run is not None else 0
        failures = [each for each in notes.failures[-1:] if each.line_number > last_line]
        return LogState(
            run=run,
            saves=tuple(save.iteration for save in notes.saves if save.iteration is not None),
            failure=failures[0] if failures else None,
            begins_anew=any(mark > last_line for mark in notes.run_marks[-1:]),
            problems=tuple(map(str, notes.problems)),
        )

    def wait(self, seconds: float) -> None:
        """Wait for more."""
        time.sleep(seconds)


def _without_lines(texts: Iterator[str], count: int) -> Iterator[str]:
    """The text after so many lines."""
    for text in texts:
        parts = text.split("\n", count)
        if len(parts) > count:
            yield parts[count]
        count = max(count - len(parts) + 1, 0)


def _ended(texts: Iterable[str]) -> Iterator[str]:
    """The text without its last line, if that has no end."""
    held = ""
    for text in texts:
        if held:
            yield held
        held = text
    # A progress bar ends its line with a carriage return.
    if end := max(held.rfind("\n"), held.rfind("\r")) + 1:
        yield held[:end]
