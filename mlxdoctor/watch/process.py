"""The process that trains: is it alive, and how to end it politely."""

import os
import signal
import time

import psutil

from mlxdoctor.safety.errors import InputError

#: Seconds that a process is given after each signal.
GRACE_SECONDS = 30.0
#: Seconds between two looks at it.
LOOK_AGAIN = 0.2


def find_process(pid: int) -> psutil.Process:
    """The process with that number; it is told apart from a later one with the same number.

    Raises:
        InputError: there is none, it belongs to somebody else, or it is this process, one
            that this one descends from, or the system's first.
    """
    if pid <= 1:
        raise InputError(None, f"{pid} is not the process of a training", "name its own PID")
    if pid == os.getpid() or pid in (parent.pid for parent in psutil.Process().parents()):
        problem = f"process {pid} is the watch itself or one that started it"
        raise InputError(None, problem, "name the PID of the training")
    try:
        process = psutil.Process(pid)
        if is_alive(process):
            os.kill(pid, 0)
            return process
    except PermissionError:
        problem = f"process {pid} belongs to another user"
        raise InputError(None, problem, "run the watch as that user") from None
    except (psutil.Error, ProcessLookupError, OverflowError):
        pass
    raise InputError(None, f"there is no process {pid}", "check the PID of the training")


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that ended and was not waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def stop(process: psutil.Process, grace: float = GRACE_SECONDS) -> tuple[bool, str]:
    """End a process as Ctrl-C would, and if that does not help as `kill` would; never harder.

    Returns:
        Whether it ended, and a sentence that says how.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if not is_alive(process):
            return True, f"process {process.pid} had ended already"
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return True, f"process {process.pid} had ended already"
        except psutil.AccessDenied:
            return False, f"process {process.pid} could not be stopped: it belongs to another user"
        deadline = time.monotonic() + grace
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN)
        if not is_alive(process):
            return True, f"process {process.pid} was asked to end ({number.name}) and did"
    return False, (
        f"process {process.pid} was asked to end (SIGINT, then SIGTERM) and still runs after "
        f"{grace:g} seconds; it is left alone"
    )
