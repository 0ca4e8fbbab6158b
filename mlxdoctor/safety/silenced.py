"""Libraries and code that write to the standard outputs by themselves."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress


@contextmanager
def silenced() -> Iterator[None]:
    """Send what anything in this process writes to standard error nowhere meanwhile.

    A Rust library reports its panic there, with a backtrace, before it raises it.
    """
    with open(os.devnull, "wb") as nowhere, _sent(2, nowhere.fileno()):  # noqa: PTH123
        yield


@contextmanager
def aside() -> Iterator[None]:
    """Send what is printed meanwhile to standard error: standard output is for the report.

    Whatever is printed by, or done to, Python's streams or the system's.
    """
    before = sys.stdout
    with suppress(Exception):  # it may be closed, or none
        before.flush()
    with _sent(1, 2), redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            # Who kept the stream from before may have printed to it.
            with suppress(Exception):
                before.flush()


@contextmanager
def _sent(descriptor: int, target: int) -> Iterator[None]:
    """Send what is written to one file descriptor to another; neither need be open."""
    try:
        kept = os.dup(descriptor)
        os.dup2(target, descriptor)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
