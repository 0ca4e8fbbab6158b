"""Running a command and measuring it: wall-clock time and peak memory of the process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """The median of several runs of one command.

    Attributes:
        seconds: wall-clock time, process start included.
        peak_mib: the largest resident set, MiB.
    """

    seconds: float
    peak_mib: float


def forget(files: Sequence[Path]) -> None:
    """Let the system drop these files from its cache, where it can be asked to (Linux)."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(
    command: Sequence[str],
    *,
    repeats: int = 5,
    cwd: Path | None = None,
    cold: Sequence[Path] = (),
) -> Measurement:
    """Run `command` several times, one warm-up not counted, and take medians.

    Args:
        cold: files that are read from the disk again each time.

    Raises:
        RuntimeError: it did not end with 0 or 1: nothing was measured.
    """
    # An installed program is compiled once; the warm-up does it for a checkout.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    seconds, peaks = [], []
    for number in range(repeats + 1):
        forget(cold)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.perf_counter() - start
        # The child is reaped: Popen must not wait for it again.
        process.returncode = os.waitstatus_to_exitcode(status)
        # 3 is also what an exception inside the program gives.
        if process.returncode not in (0, 1):
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        if number:
            seconds.append(elapsed)
            # ru_maxrss is in bytes on macOS and in KiB elsewhere.
            peaks.append(usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10))
    return Measurement(statistics.median(seconds), max(peaks))
