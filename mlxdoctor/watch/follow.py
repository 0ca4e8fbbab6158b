"""Following a log until its training raises an alarm or is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlxdoctor.watch.alarms import Watch
from mlxdoctor.watch.report_stream import ReportStream, read_whole
from mlxdoctor.watch.reports import Alarm, AlarmKind, Best, LogRow, nearest_save
from mlxdoctor.watch.tail import FileTail, Piece, Tail

#: Validations without a lower loss after which that is said, once.
REMARKED_AFTER = 3
#: Seconds between two looks at the log.
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Ending:
    """How the watch on a log ended.

    Attributes:
        reason: in words: "the training finished".
        alarm: what was raised, if anything.
        is_broken_off: whether the log says that the training broke off.
        reports: how many were read.
        step: of the last one.
        unit: what the log counts.
        iterations: how long the training is to be, where that is known.
        best: the best validation, and the save nearest to it.
    """

    reason: str
    alarm: Alarm | None
    is_broken_off: bool
    reports: int
    step: int
    unit: str
    iterations: int | None
    best: Best | None = None


@dataclass(frozen=True)
class Until:
    """When following ends besides at an alarm and at the end that the log announces.

    Attributes:
        is_alive: whether the process that trains still runs; None where none is known.
        idle_seconds: without a word from the log; None for any time.
        at_once: at the end of what is there already.
    """

    is_alive: Callable[[], bool] | None = None
    idle_seconds: float | None = None
    at_once: bool = False


class Follower:
    """Reads a log as it grows and judges every report.

    Args:
        tail: where the text comes from.
        path: the log's name.
        make_watch: a new watch; the file may turn out to hold another log.
        iterations: how long the training is to be; None for what the log says.
        notify: told in a sentence what is waited for.
        remark: told in a sentence what is no alarm and worth knowing, and its figures.
        progress: called with a label, the iterations done and the iterations to be done.
    """

    def __init__(
        self,
        tail: Tail,
        path: Path,
        make_watch: Callable[[], Watch],
        iterations: int | None = None,
        *,
        notify: Callable[[str], None] = lambda _: None,
        remark: Callable[[str, Mapping[str, Any]], None] = lambda _text, _figures: None,
        progress: Callable[[str, int, int], None] = lambda _label, _done, _total: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tail, self._path = tail, path
        self._make_watch = make_watch
        self._iterations = iterations
        self._notify, self._progress, self._clock = notify, progress, clock
        self._remark, self._remarked_at = remark, -1
        self._watch, self._stream = make_watch(), ReportStream(path)
        self._may_be_document = False
        self._written: tuple[int, int] | None = None
        self._is_document = False
        self._reports, self._step, self._unit = 0, 0, "iteration"

    def run(self, until: Until) -> Ending:
        """Follow the log to its end."""
        heard = self._clock()
        has_waited = False
        while True:
            was_alive = until.is_alive is None or until.is_alive()
            piece = self._tail.read()
            if piece is not None:
                self._take(piece)
                heard = self._clock()
                continue
            if self._is_rewritten():
                heard = self._clock()
            if (ending := self._ending()) is not None:
                return ending
            if self._tail.is_missing and not has_waited:
                self._notify(f"{self._path} is not there yet; waiting for it")
                has_waited = True
            if self._tail.is_closed or until.at_once:
                return self._finish("the log ends here")
            if not was_alive:
                return self._finish("the process that trains has ended")
            if until.idle_seconds is not None and self._clock() - heard >= until.idle_seconds:
                return self._finish(f"the log has not grown for {until.idle_seconds:g} seconds")
            self._tail.wait(POLL_SECONDS)

    def _take(self, piece: Piece) -> None:
        if piece.is_new:
            # Rotated logs go on where the old one ended: the watch tells a restart itself.
            self._stream = ReportStream(self._path)
            self._may_be_document = self._stream.may_be_document(piece.text)
        if not self._is_document:
            self._see(self._stream.feed(piece.text))

    def _is_rewritten(self) -> bool:
        """Read a log that is one document anew, where its trainer has written it again."""
        if not isinstance(self._tail, FileTail) or not self._may_be_document:
            return False
        written = self._tail.changed()
        if written == self._written or (self._reports and not self._is_document):
            return False
        self._written = written
        reports = read_whole(self._path)
        if not reports:
            return False
        self._is_document = True
        self._watch, self._reports = self._make_watch(), 0
        self._see(reports)
        return True

    def _see(self, reports: list[LogRow]) -> None:
        self._watch.iterations = self._total
        for report in reports:
            self._watch.see(report)
            self._reports += 1
            self._step, self._unit = report.step, report.unit
        best = self._best
        if best is not None and best.since >= REMARKED_AFTER and best.step != self._remarked_at:
            self._remarked_at = best.step
            said = str(best)
            self._remark(f"{said[:1].upper()}{said[1:]}.", {"best": best.to_dict()})
        if reports:
            self._progress("watching", self._step, self._total or self._step)

    @property
    def _best(self) -> Best | None:
        best = self._watch.best
        if best is None:
            return None
        return replace(best, save=nearest_save(best.step, self._stream.saves))

    @property
    def _total(self) -> int | None:
        return self._iterations if self._iterations is not None else self._stream.iterations

    def _ending(self) -> Ending | None:
        """How it ended, once everything that was written is read; None where it goes on."""
        if self._stream.begins_anew:
            return None
        alarm = self._watch.standing
        if alarm is not None:
            if alarm.verdict is AlarmKind.NOT_IMPROVING and self._best is not None:
                alarm = replace(alarm, message=str(self._best))
            return self._end("an alarm was raised", alarm)
        failure = self._stream.failure
        if failure is not None:
            reason = f"the training broke off ({failure.kind}): {failure.text}"
            return self._end(reason, None, is_broken_off=True)
        if self._total is not None and self._watch.trained_to >= self._total > 0:
            return self._end("the training finished", None)
        return None

    def _finish(self, reason: str) -> Ending:
        if not self._is_document:
            rest = self._tail.rest()
            self._see(self._stream.feed(rest + "\n") if rest else [])
            self._see(self._stream.finish())
        return self._ending() or self._end(reason, None)

    def _end(self, reason: str, alarm: Alarm | None, *, is_broken_off: bool = False) -> Ending:
        total, best = self._total, self._best
        counted = self._reports, self._step, self._unit
        return Ending(reason, alarm, is_broken_off, *counted, total, best)
