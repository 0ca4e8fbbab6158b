"""A child process whose memory and clock its parent watches, and what became of it.

The parent polls: memory and processor time by psutil, and the child's page (see `stages`) for
what it is doing and what that may take. It ends the child where a stage takes more, and knows
from the page in which stage a child died that nobody ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxdoctor.safety.stages import MODELS, PAGE, Frame, Kind, LeftOut, Slot, Told

#: How often a child is looked at (seconds): at 2 GB a second it gets 0.1 GB too far.
POLL = 0.05
#: A stage that ends by itself where it can is given so much longer (seconds).
GRACE = 2.0
#: A program that has just started has no more than this (bytes).
AT_FIRST = 150_000_000
#: Of the machine's memory, what a child may take however it does (fraction).
MOST_OF_MEMORY = 0.9
#: Seconds of processor time that show that something goes on: a GPU is given work now and then.
STIR = 0.02
#: Times that the work on one item is begun again.
MOST_TIMES = 4
#: A child is first looked at after so long (seconds): most have ended by then.
AT_REST = 0.25
#: What a child finds its page, its line and what to leave out by.
VARIABLE = "MLXDOCTOR_WATCHED"
#: Signals by which a program ends because somebody wanted it to; a library that gives up, or the
#: system, uses others.
WANTED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGPIPE,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)

_DEATHS = {
    signal.SIGSEGV: "a library crashed in it (SIGSEGV)",
    signal.SIGBUS: "a library crashed in it (SIGBUS)",
    signal.SIGABRT: "a library gave up in it (SIGABRT)",
    signal.SIGFPE: "a library divided by zero in it (SIGFPE)",
    signal.SIGILL: "a library crashed in it (SIGILL)",
    signal.SIGKILL: "the system killed it, as it does when memory runs out",
}


@dataclass(frozen=True)
class Stopped:
    """A child that died, or that was ended.

    Attributes:
        item: what it was working on, which can be begun again; None where that can't.
        stage: what it was doing, to be left out then.
        sentence: what to tell the user.
    """

    item: str | None
    stage: str
    sentence: str


@dataclass
class Attempts:
    """The times that some work was begun, and what is left out of it now.

    Attributes:
        left_out: what the next child is to leave out.
    """

    left_out: dict[tuple[str, str], str] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)

    def again(self, stopped: Stopped) -> bool:
        """Leave out what was stopped; False where the work can't be begun again without it."""
        item = stopped.item
        if item is None or (item, item) in self.left_out:
            return False
        self._times[item] = self._times.get(item, 0) + 1
        stage = stopped.stage if self._times[item] < MOST_TIMES else item
        if (item, stage) in self.left_out:
            stage = item
        self.left_out[item, stage] = stopped.sentence
        return True


@dataclass
class _Account:
    """What a stage has taken so far."""

    serial: int
    memory: float
    begun: float
    busy: float = 0.0
    #: When it last did something, and how busy it had been until then.
    stirred: float = 0.0
    counted: float = 0.0

    def spend(self, seconds: float, now: float, unwatched: float) -> None:
        """It was busy for so long since it was last looked at."""
        self.busy += seconds
        self.stirred += unwatched
        if self.busy - self.counted > STIR:
            self.counted, self.stirred = self.busy, now


@dataclass
class Watch:
    """Looks at a child, time and again.

    Args:
        pid: the child's.
        slot: its page.
    """

    pid: int
    slot: Slot
    _process: Any = None
    _accounts: list[_Account] = field(default_factory=list)
    _looked: float = 0.0
    _worked: float = 0.0

    def look(self) -> Stopped | None:
        """What the child is to be ended for; None where all is well."""
        import psutil

        try:
            is_first = self._process is None
            if is_first:
                self._process = psutil.Process(self.pid)
                self._looked = time.monotonic()
            told = self.slot.read()
            memory, worked = _private(self._process), sum(self._process.cpu_times()[:2])
        except (psutil.Error, OSError):
            return None
        now = time.monotonic()
        spent = min(now - self._looked, worked - self._worked)
        # While the watcher is stopped, by Ctrl-Z, so is what it watches.
        unwatched = max(now - self._looked - 1.0, 0.0)
        self._looked, self._worked = now, worked
        del self._accounts[len(told.frames) :]
        for depth, frame in enumerate(told.frames):
            if depth < len(self._accounts) and self._accounts[depth].serial == frame.serial:
                self._accounts[depth].spend(spent, now, unwatched)
                continue
            del self._accounts[depth:]
            began = min(memory, AT_FIRST) if is_first else memory
            self._accounts.append(_Account(frame.serial, began, now, stirred=now))
        whole = float(psutil.virtual_memory().total)
        if memory > MOST_OF_MEMORY * whole:
            why = f"it took over {_gigabytes(memory)}, nearly all memory of this machine"
            return _stopped(told, len(told.frames) - 1, why)
        for depth in reversed(range(len(told.frames))):
            frame, account = told.frames[depth], self._accounts[depth]
            if why := _late(frame, account, now):
                return _stopped(told, depth, f"it {why}")
            if why := _grown(told, frame, memory - account.memory):
                # What it was doing last is left out, whoever has taken most until then.
                whose = "it" if depth == len(told.frames) - 1 else frame.name
                return _stopped(told, len(told.frames) - 1, f"{whose} {why}")
        return None

    def of_death(self, status: int) -> Stopped | None:
        """What a child died of, by its exit status; None where somebody wanted it to end.

        Args:
            status: as `os.waitpid` gives it.
        """
        told = self.slot.read()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in WANTED:
                return None
            why = _DEATHS.get(signal.Signals(number), f"it was ended by a signal ({number})")
        else:
            code = os.waitstatus_to_exitcode(status)
            why = f"it ended the program without a word (exit status {code})"
        return _stopped(told, len(told.frames) - 1, why)


def _private(process: Any) -> float:
    """Bytes that a process has for itself: pages of files can be had again."""
    memory = process.memory_info()
    return float(memory.rss - getattr(memory, "shared", 0))


def _grown(told: Told, frame: Frame, growth: float) -> str:
    """That a stage has taken too much memory, as a clause; empty where it has not."""
    allowed = frame.growth + 2 * told.weights
    if growth <= allowed or (told.has_models and frame.kind is not Kind.LIBRARY):
        return ""
    most = _gigabytes(allowed)
    return f"took over {most} of memory; if that is sound, {_raised('stage_bytes')}"


def _late(frame: Frame, account: _Account, now: float) -> str:
    """That a stage has taken too long, as a clause; empty where it has not."""
    raised = f"; if that is sound, {_raised(frame.limit)}" if frame.limit else ""
    if account.busy > frame.busy + GRACE:
        return f"took over {frame.busy:g} s{raised}"
    # What waits for something is not busy. A library is never waited for, a check has its own time.
    if frame.kind is Kind.CODE and now - account.stirred > frame.busy + GRACE:
        return f"did nothing for {frame.busy:g} s{raised}"
    if now - account.begun > frame.wall + GRACE:
        return f"took over {frame.wall:g} s; allow more with --time-limit"
    return ""


def _raised(limit: str) -> str:
    return f"raise the limit with --limit {limit}=N"


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2g} GB"


def _stopped(told: Told, depth: int, why: str) -> Stopped:
    frames = told.frames[: depth + 1]
    if not frames:
        return Stopped(None, "", f"the work was stopped: {why}")
    last = frames[-1]
    item = next((one.name for one in frames if one.kind is Kind.ITEM), None)
    if last.kind is Kind.CODE:
        return Stopped(None, last.name, f"{last.name} was stopped: {why}")
    if last.kind is Kind.WORK and told.has_models:
        return Stopped(item, MODELS, f"{MODELS} was stopped in {last.name}: {why}")
    return Stopped(item, last.name, f"{last.name} was stopped: {why}")


@dataclass
class Child:
    """A program that was started to be watched, and the two things that connect it.

    Attributes:
        pid: its process id.
        watch: looks at it.
    """

    pid: int
    watch: Watch
    _line: int

    @classmethod
    def start(
        cls, command: Sequence[str], left_out: LeftOut | None = None, inherited: Sequence[int] = ()
    ) -> Child:
        """Start a program that calls `attach_from_environment` before anything else.

        Args:
            command: the program's path and its arguments.
            left_out: stages that it is to leave out.
            inherited: file descriptors that it gets besides.

        Raises:
            OSError: it cannot be started.
        """
        with os.fdopen(_page(), "r+b") as page:
            slot = Slot(page.fileno())
            theirs, ours = os.pipe()
            given = [page.fileno(), theirs, *inherited]
            stated = [[*key, sentence] for key, sentence in (left_out or {}).items()]
            handed = json.dumps({"slot": given[0], "line": theirs, "left_out": stated})
            for one in given:
                os.set_inheritable(one, True)
            try:
                pid = os.posix_spawn(command[0], list(command), {**os.environ, VARIABLE: handed})
            except OSError:
                os.close(ours)
                slot.close()
                raise
            finally:
                for one in given:
                    os.set_inheritable(one, False)
                os.close(theirs)
        return cls(pid, Watch(pid, slot), ours)

    def ended(self) -> int | None:
        """Its exit status, as `os.waitpid` gives it; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

    def kill(self) -> None:
        """End it, whatever it is doing, and wait until it has ended."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        """Let go of what connects it; it must have ended."""
        os.close(self._line)
        self.watch.slot.close()


def _page() -> int:
    """A file that no folder lists, of the size of a page."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mlxdoctor")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, PAGE)
    return descriptor


def attach_from_environment() -> bool:
    """Be watched by the parent that started this process so; False where none did."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return False
    from mlxdoctor.safety.stages import attach, leave_out

    handed = json.loads(text)
    attach(handed["slot"], handed["line"])
    leave_out({(item, stage): sentence for item, stage, sentence in handed["left_out"]})
    return True
