"""The process that trains: is it alive, and how to end it politely."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.safety.errors import InputError

#: Seconds that a process is given after each signal.
GRACE_SECONDS = 30.0
#: Seconds between two looks at it.
LOOK_AGAIN = 0.2


@dataclass(frozen=True)
class TrainingProcess:
    """A process, told apart from a later one with the same number.

    Attributes:
        pid: its number.
        started: when it was started, as the system writes it.
        began: the same, in seconds since the epoch; None where it can't be read.
    """

    pid: int
    started: str
    began: float | None = None

    def is_alive(self) -> bool:
        """Whether it still runs; one that ended and was not waited for does not."""
        status = _status(self.pid)
        return status is not None and status.started == self.started and status.state != "Z"


@dataclass(frozen=True)
class _Status:
    parent: int
    state: str
    started: str


def find_process(pid: int) -> TrainingProcess:
    """The process with that number.

    Raises:
        InputError: there is none, it belongs to somebody else, or it is this process, one
            that this one descends from, or the system's first.
    """
    if pid <= 1:
        raise InputError(None, f"{pid} is not the process of a training", "name its own PID")
    if pid == os.getpid() or pid in _ancestors(os.getpid()):
        raise InputError(
            None,
            f"process {pid} is the watch itself or one that started it",
            "name the PID of the training",
        )
    status = _status(pid)
    if status is None or status.state == "Z":
        raise InputError(None, f"there is no process {pid}", "check the PID of the training")
    try:
        os.kill(pid, 0)
    except PermissionError:
        raise InputError(
            None, f"process {pid} belongs to another user", "run the watch as that user"
        ) from None
    except ProcessLookupError:
        raise InputError(None, f"there is no process {pid}", "check the PID") from None
    return TrainingProcess(pid, status.started, _seconds(status.started))


def stop(
    target: TrainingProcess,
    grace: float = GRACE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[bool, str]:
    """End a process as Ctrl-C would, and if that does not help as `kill` would; never harder.

    Returns:
        Whether it ended, and a sentence that says how.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if not target.is_alive():
            return True, f"process {target.pid} had ended already"
        try:
            os.kill(target.pid, number)
        except ProcessLookupError:
            return True, f"process {target.pid} had ended already"
        except PermissionError:
            return False, f"process {target.pid} could not be stopped: it belongs to another user"
        deadline = clock() + grace
        while target.is_alive() and clock() < deadline:
            sleep(LOOK_AGAIN)
        if not target.is_alive():
            return True, f"process {target.pid} was asked to end ({number.name}) and did"
    return False, (
        f"process {target.pid} was asked to end (SIGINT, then SIGTERM) and still runs after "
        f"{grace:g} seconds; it is left alone"
    )


def machine_memory_gb() -> float | None:
    """Memory of this machine, in GB; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return None


def _ancestors(pid: int) -> Iterator[int]:
    seen = set[int]()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        status = _status(pid)
        if status is None:
            return
        pid = status.parent
        yield pid


def _status(pid: int) -> _Status | None:
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        # The name in the second field may hold anything, blanks and brackets included.
        fields = text.rpartition(")")[2].split()
        return _Status(int(fields[1]), fields[0], fields[19])
    command = ["ps", "-o", "ppid=,stat=,lstart=", "-p", str(pid)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    parts = told.stdout.split(maxsplit=2)
    return _Status(int(parts[0]), parts[1][0], parts[2].strip()) if len(parts) == 3 else None


def _seconds(started: str) -> float | None:
    """When a process began, from ticks since the machine did (Linux) or from a date (macOS)."""
    try:
        if started.isdigit():
            told = Path("/proc/stat").read_text().partition("\nbtime ")[2].split()
            return int(told[0]) + int(started) / os.sysconf("SC_CLK_TCK")
        return time.mktime(time.strptime(started, "%a %b %d %H:%M:%S %Y"))
    except (OSError, ValueError, IndexError):
        return None
