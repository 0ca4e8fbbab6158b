"""Libraries and code that write to the standard outputs by themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def silenced() -> Iterator[None]:
    """Send what anything in this process writes to standard error nowhere meanwhile.

    A Rust library reports its panic there, with a backtrace, before it raises it.
    """
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def aside() -> Iterator[None]:
    """Send what is printed meanwhile to standard error: standard output is for the report.

    Whatever is printed by, or done to, Python's streams or the system's.
    """
    before = sys.stdout
    try:
        if before is not None:
            before.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        yield
        return
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        # Who kept the stream from before may have printed to it.
        with suppress(Exception):
            before.flush()
        sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)
