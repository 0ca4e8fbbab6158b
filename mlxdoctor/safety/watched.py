"""A child process whose memory and clock its parent watches, and what became of it.

A program is run as a watched child of itself, as if it ran alone: the parent imports next to
nothing, passes signals and exit codes on, and begins again where a stage of an item was stopped
that can be left out. It polls memory and processor time, and the child's page (see `stages`) for
what it is doing and what that may take.
"""

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple

from mlxdoctor.safety import stages
from mlxdoctor.safety.stages import Frame, Kind, LeftOut, Notes, Page

#: How often a child is looked at (seconds): at 2 GB a second it gets 0.1 GB too far.
POLL = 0.05
#: A child is first looked at after so long (seconds): most have ended by then.
AT_REST = 0.25
#: A stage that ends by itself where it can is given so much longer (seconds).
GRACE = 2.0
#: A program that has just started has no more than this (bytes).
AT_FIRST = 150_000_000
#: Of the machine's memory, what a child may take however it does (fraction).
MOST_OF_MEMORY = 0.9
#: Seconds of processor time that show that something goes on: a GPU is given work now and then.
STIR = 0.02
#: The most that counts as passed between two looks (seconds): while the parent is stopped, by
#: Ctrl-Z, so is the child.
MOST_BETWEEN = 1.0
#: Times that the work on one item is begun again.
MOST_TIMES = 4
#: Signals by which somebody ends a program; a library that gives up, or the system, uses others.
WANTED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT}
WANTED |= {signal.SIGUSR1, signal.SIGUSR2}
#: Exit code of a child that a second Ctrl-C ended.
INTERRUPTED = 130
#: Seconds in which a child that has closed what it was given can be waited for.
MOMENT = 0.002
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATHS = {
    signal.SIGSEGV: "a library crashed in it (SIGSEGV)",
    signal.SIGBUS: "a library crashed in it (SIGBUS)",
    signal.SIGABRT: "a library gave up in it (SIGABRT)",
    signal.SIGFPE: "a library divided by zero in it (SIGFPE)",
    signal.SIGILL: "a library crashed in it (SIGILL)",
    signal.SIGKILL: "the system killed it, as it does when memory runs out",
}


class Stopped(NamedTuple):
    """A child that died, or that was ended.

    Attributes:
        item: what it was working on, which can be begun again; None where that can't.
        stage: what it was doing, to be left out then.
    """

    item: str | None
    stage: str
    sentence: str


def begin_again(left_out: dict[tuple[str, str], str], stopped: Stopped) -> bool:
    """Leave out what was stopped, too; False where the work can't be begun again without it.

    An item that was stopped often is left out as a whole.

    Args:
        left_out: what was left out before; this is added.
    """
    item = stopped.item
    if item is None or (item, item) in left_out:
        return False
    times = 1 + sum(other == item for other, _ in left_out)
    can_go_on = times < MOST_TIMES and (item, stopped.stage) not in left_out
    left_out[item, stopped.stage if can_go_on else item] = stopped.sentence
    return True


class _Taken(NamedTuple):
    """What a process has, in bytes, and how long it has run and been busy, in seconds."""

    memory: float
    seconds: float
    busy: float


class Child:
    """A program that is watched: it calls `stages.attach` before anything else.

    Args:
        command: the program's path and its arguments.
        left_out: stages that it is to leave out.
        inherited: file descriptors that it gets besides.

    Attributes:
        line: can be read from, and holds nothing, when the child has ended.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], left_out: LeftOut | None = None, inherited: Sequence[int] = ()
    ) -> None:
        page = _page()
        # Nothing is sent on it: who reads is told when the other process has ended.
        self.line, line = socket.socketpair()
        stated = [[*key, sentence] for key, sentence in (left_out or {}).items()]
        handed = json.dumps({"page": page, "line": line.fileno(), "left_out": stated})
        try:
            fds, environment = (page, line.fileno()), {**os.environ, stages.VARIABLE: handed}
            self.process = subprocess.Popen(command, pass_fds=(*fds, *inherited), env=environment)
            self._page = Page(page)
        except OSError:
            self.line.close()
            raise
        finally:
            os.close(page)
            line.close()
        self._look_after = time.monotonic() + AT_REST
        self._looked: tuple[float, float] | None = None
        # Now, when it last did something, and when each stage that it is in was entered.
        self._taken = self._stirred = _Taken(0.0, 0.0, 0.0)
        self._entered: dict[int, _Taken] = {}
        self._measured: Any = None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.line.close()
        self._page.close()

    def look(self) -> Stopped | None:
        """What the child is to be ended for; None where all is well."""
        now = time.monotonic()
        if now < self._look_after:
            return None
        import psutil

        try:
            if self._measured is None:
                self._measured = psutil.Process(self.process.pid)
            notes = self._page.read()
            # What the process has for itself: pages of files can be had again.
            had = self._measured.memory_info()
            memory = float(had.rss - getattr(had, "shared", 0))
            worked = sum(self._measured.cpu_times()[:2])
        except (psutil.Error, OSError):
            return None
        is_first = self._looked is None
        before, worked_before = self._looked or (now, worked)
        self._looked, self._look_after = (now, worked), now + POLL
        passed = min(now - before, MOST_BETWEEN)
        busy = self._taken.busy + min(passed, worked - worked_before)
        self._taken = _Taken(memory, self._taken.seconds + passed, busy)
        if busy - self._stirred.busy > STIR:
            self._stirred = self._taken
        began = self._taken._replace(memory=min(memory, AT_FIRST)) if is_first else self._taken
        serials = [frame.serial for frame in notes.frames]
        self._entered = {serial: self._entered.get(serial, began) for serial in serials}
        return self._over_a_limit(notes)

    def _over_a_limit(self, notes: Notes) -> Stopped | None:
        import psutil

        memory, seconds, busy = self._taken
        if memory > MOST_OF_MEMORY * psutil.virtual_memory().total:
            why = f"it took over {memory / 1e9:.2g} GB, nearly all memory of this machine"
            return _stopped(notes, notes.frames, why)
        for depth in range(len(notes.frames), 0, -1):
            frame = notes.frames[depth - 1]
            before = self._entered[frame.serial]
            idle = seconds - max(before.seconds, self._stirred.seconds)
            if why := _late(frame, seconds - before.seconds, busy - before.busy, idle):
                return _stopped(notes, notes.frames[:depth], f"it {why}")
            if why := _grown(notes, frame, memory - before.memory):
                # What it was doing last is left out, whoever has taken most until then.
                whose = "it" if depth == len(notes.frames) else frame.name
                return _stopped(notes, notes.frames, f"{whose} {why}")
        return None

    def outcome(self) -> int | Stopped:
        """What a child that has ended came to.

        Returns:
            Its exit code, below zero where somebody ended it by a signal; or what it died of.
        """
        code = self.process.wait()
        notes = self._page.read()
        if notes.code is not None:
            # Whatever a library did while it was put away.
            return notes.code
        if -code in WANTED or (not notes.is_watched and code >= 0):
            return code
        why = f"it ended the program without a word (exit status {code})"
        if code < 0:
            why = _DEATHS.get(signal.Signals(-code), f"it was ended by a signal ({-code})")
        return _stopped(notes, notes.frames, why)


def _grown(notes: Notes, frame: Frame, growth: float) -> str:
    """That a stage has taken too much memory, as a clause; empty where it has not."""
    allowed = notes.growth + 2 * notes.weights
    if growth <= allowed or (notes.has_models and frame.kind != Kind.LIBRARY):
        return ""
    most = f"took over {allowed / 1e9:.2g} GB of memory"
    return f"{most}; if that is sound, raise the limit with --limit stage_bytes=N"


def _late(frame: Frame, seconds: float, busy: float, idle: float) -> str:
    """That a stage has taken too long, as a clause; empty where it has not."""
    advice = f"; if that is sound, raise the limit with --limit {frame.limit}=N"
    raised = advice if frame.limit else ""
    if busy > frame.busy + GRACE:
        return f"took over {frame.busy:g} s{raised}"
    # What waits for something is not busy. A library is never waited for, a check has its own time.
    if frame.kind == Kind.CODE and idle > frame.busy + GRACE:
        return f"did nothing for {frame.busy:g} s{raised}"
    if seconds > frame.wall + GRACE:
        return f"took over {frame.wall:g} s; allow more with --time-limit"
    return ""


def _stopped(notes: Notes, frames: Sequence[Frame], why: str) -> Stopped:
    if not frames:
        return Stopped(None, "", f"the work was stopped: {why}")
    last = frames[-1]
    items = [frame.name for frame in frames if frame.kind == Kind.ITEM]
    item = items[0] if items and last.kind != Kind.CODE else None
    if last.kind == Kind.WORK and notes.has_models:
        sentence = f"{stages.MODELS} was stopped in {last.name}: {why}"
        return Stopped(item, stages.MODELS, sentence)
    return Stopped(item, last.name, f"{last.name} was stopped: {why}")


def _page() -> int:
    """A file that no folder lists, of the size of a page."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mlxdoctor")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, stages.PAGE)
    return descriptor


def supervise(command: Sequence[str]) -> int | str:
    """Run a program as a watched child.

    Ctrl-C is passed on; a second one, a second or more later, ends the child at once.

    Args:
        command: its path and arguments; it calls `stages.attach`.

    Returns:
        Its exit code; or the sentence that says why it was stopped, which no exit code does.

    Raises:
        OSError: it cannot be started.
    """
    left_out: dict[tuple[str, str], str] = {}
    while True:
        stopped = _run(command, left_out)
        if isinstance(stopped, int):
            return stopped
        if sys.stderr.isatty():
            # What is left of a progress bar.
            sys.stderr.write("\r" + " " * 79 + "\r")
            sys.stderr.flush()
        if not begin_again(left_out, stopped):
            return stopped.sentence


def _run(command: Sequence[str], left_out: LeftOut) -> int | Stopped:
    """Start a child and wait for it; returns its exit code, or what it was stopped for."""
    child: Child | None = None
    first_interrupt = math.inf
    is_ended = False

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal first_interrupt, is_ended
        if number == signal.SIGINT:
            now = time.monotonic()
            first_interrupt = min(first_interrupt, now)
            if is_ended := now - first_interrupt > stages.SAME_INTERRUPT:
                number = signal.SIGKILL
        if child is not None:
            child.process.send_signal(number)

    # What is ignored, as in the background, is ignored by the child as well.
    before = {
        number: signal.signal(number, pass_on)
        for number in _PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        child = Child(command, left_out)
        stopped: Stopped | None = None
        while stopped is None and child.process.poll() is None:
            if select.select([child.line], [], [], POLL)[0]:
                # It can be waited for a moment later; or it has closed what it was given.
                time.sleep(MOMENT)
            stopped = child.look()
        outcome = child.outcome() if stopped is None else stopped
    finally:
        if child is not None:
            child.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if is_ended:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    if isinstance(outcome, int) and outcome < 0:
        # End as the child did, so that a shell sees the same.
        signal.signal(-outcome, signal.SIG_DFL)
        os.kill(os.getpid(), -outcome)
        return 128 - outcome
    return outcome
