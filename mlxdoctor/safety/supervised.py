"""A program run as a watched child of itself, as if it ran alone.

The parent imports next to nothing, passes signals and exit codes on, and begins again where a
stage of an item was stopped that can be left out.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from mlxdoctor.safety.stages import SAME_INTERRUPT, LeftOut
from mlxdoctor.safety.watched import POLL, Child, Stopped, begin_again

INTERRUPTED = 130
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def can_supervise() -> bool:
    """Whether this system has what it takes."""
    return os.name == "posix" and bool(sys.executable)


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

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        nonlocal first_interrupt, is_ended
        if number == signal.SIGINT:
            now = time.monotonic()
            first_interrupt = min(first_interrupt, now)
            if is_ended := now - first_interrupt > SAME_INTERRUPT:
                number = signal.SIGKILL
        if child is not None:
            child.send(number)

    # What is ignored, as in the background, is ignored by the child as well.
    before = {
        number: signal.signal(number, pass_on)
        for number in _PASSED_ON
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        child = Child(command, left_out)
        outcome = _outcome(child)
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


def _outcome(child: Child) -> int | Stopped:
    while not child.has_ended:
        if select.select([child.over], [], [], POLL)[0]:
            # It can be waited for a moment later; or it has closed what it was given.
            time.sleep(0.002)
        if stopped := child.look():
            return stopped
    return child.outcome()
