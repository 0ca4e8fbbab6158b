"""Limits on how long something in this process may run, and on the memory that it may take."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TimeLimitExceeded(BaseException):
    """What was running took longer than it may.

    No `Exception`, so that code in between that catches everything lets it through.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"took longer than {seconds:g} s")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop the body after so many seconds, at the next step of Python code.

    The clock is the process's alarm, which only the main thread can set: in another
    thread, and where the system has no such alarm, the body runs without a limit.
    An alarm that was set before and is due earlier stays in charge; a later one is put
    off until the body has ended. A library is stopped when it returns to Python.

    Raises:
        TimeLimitExceeded: it took longer.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    due, interval = signal.getitimer(signal.ITIMER_REAL)
    # A handler that was not set from Python could not be put back.
    if 0 < due <= seconds or signal.getsignal(signal.SIGALRM) is None:
        yield
        return
    armed = True

    def expire(_number: int, _frame: FrameType | None) -> None:
        if armed:
            raise TimeLimitExceeded(seconds)

    before = signal.signal(signal.SIGALRM, expire)
    begun = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if due:
            remaining = due - (time.monotonic() - begun)
            # Zero would switch it off.
            signal.setitimer(signal.ITIMER_REAL, max(remaining, 1e-6), interval)


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Let this process grow by so many bytes at most in the body: more is a `MemoryError`.

    Only Linux limits the addresses of a process; elsewhere the watching parent has to do.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = pages * resource.getpagesize() + size
    stricter = allowed if soft == resource.RLIM_INFINITY else min(allowed, soft)
    resource.setrlimit(resource.RLIMIT_AS, (stricter, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
