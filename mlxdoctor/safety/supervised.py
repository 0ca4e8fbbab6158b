"""A program run as a watched child of itself, as if it ran alone.

The parent imports next to nothing, passes signals and exit codes on, and begins again where a
stage of an item was stopped that can be left out.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mlxdoctor.safety.stages import State
from mlxdoctor.safety.watched import AT_REST, POLL, Attempts, Child, Stopped

#: Ctrl-C reaches all processes of a terminal. Where the child's Python has not seen it by then
#: (seconds), only the parent was meant, or the child is busy in a library.
UNHEARD = 0.1
#: A second Ctrl-C after so long (seconds) ends a child that has not noticed the first.
DEAF = 1.0
INTERRUPTED = 130

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def can_supervise() -> bool:
    """Whether this system has what it takes."""
    return hasattr(os, "posix_spawn") and bool(sys.executable)


def supervise(command: Sequence[str]) -> int | str:
    """Run a program as a watched child.

    Args:
        command: its path and arguments; it calls `watched.attach_from_environment`.

    Returns:
        Its exit code; or the sentence that says why it was stopped, which no exit code does.

    Raises:
        OSError: it cannot be started.
    """
    attempts = Attempts()
    with _signals() as wakeup:
        while True:
            child = Child.start(command, attempts.left_out)
            try:
                stopped = _Supervisor(child, wakeup).run()
            finally:
                child.close()
            if not isinstance(stopped, Stopped):
                return stopped
            if sys.stderr.isatty():
                # What is left of a progress bar.
                sys.stderr.write("\r" + " " * 79 + "\r")
                sys.stderr.flush()
            if not attempts.again(stopped):
                return stopped.sentence


class _Supervisor:
    """What a parent does while its child runs."""

    def __init__(self, child: Child, wakeup: int) -> None:
        self._child = child
        self._wakeup = wakeup
        #: Times that Ctrl-C came; since when the child has not noticed one; when to tell it.
        self._times = 0
        self._unheard: float | None = None
        self._tell: float | None = None

    def run(self) -> int | Stopped:
        """Wait for the child; returns its exit code, or what it was stopped for."""
        child, begun = self._child, time.monotonic()
        while True:
            if select.select([self._wakeup], [], [], POLL)[0]:
                for number in os.read(self._wakeup, 4096):
                    if number == signal.SIGINT and self._is_deaf():
                        child.kill()
                        sys.stderr.write("interrupted\n")
                        return INTERRUPTED
                    if number in _PASSED_ON:
                        self._send(number)
            status = child.ended()
            if status is not None:
                return self._came_of(status)
            now = time.monotonic()
            self._pass_on_interrupt(now)
            if now - begun > AT_REST and (stopped := child.watch.look()):
                child.kill()
                return stopped

    def _is_deaf(self) -> bool:
        """Note a Ctrl-C; whether it is the second that the child does not notice."""
        now = time.monotonic()
        if self._has_heard():
            self._unheard = None
        elif self._unheard is not None and now - self._unheard > DEAF:
            return True
        self._times += 1
        self._unheard = self._unheard or now
        self._tell = now + UNHEARD
        return False

    def _pass_on_interrupt(self, now: float) -> None:
        """Tell the child of a Ctrl-C that only its parent got."""
        if self._tell is not None and now >= self._tell:
            self._tell = None
            if not self._has_heard():
                # Two that Python has not seen yet are one to it.
                self._send(signal.SIGINT)

    def _has_heard(self) -> bool:
        return self._child.watch.slot.read().interrupts >= self._times

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._child.pid, number)

    def _came_of(self, status: int) -> int | Stopped:
        told = self._child.watch.slot.read()
        if told.state is State.ENDED:
            # Whatever a library did while it was put away.
            return told.code
        if told.state is State.STARTING and os.WIFEXITED(status):
            return os.waitstatus_to_exitcode(status)
        stopped = self._child.watch.of_death(status)
        if stopped is None:
            _die_of(os.WTERMSIG(status))
            return 128 + os.WTERMSIG(status)
        return stopped


@contextmanager
def _signals() -> Iterator[int]:
    """Have signals written to a pipe, whose end to read from is given."""
    wakeup, written = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(written, False)
    numbers = (signal.SIGCHLD, signal.SIGINT, *_PASSED_ON)
    before = {
        # What is ignored, as in the background, is ignored by the child as well.
        one: signal.signal(one, _noted)
        for one in numbers
        if one == signal.SIGCHLD or signal.getsignal(one) is not signal.SIG_IGN
    }
    was = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        yield wakeup
    finally:
        signal.set_wakeup_fd(was)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wakeup)
        os.close(written)


def _noted(*_: object) -> None:
    """The pipe says it."""


def _die_of(number: int) -> None:
    """End as the child did, so that a shell sees the same."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
