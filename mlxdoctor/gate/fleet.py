"""Many items over many workers: in this process, in others, or on a Dask cluster.

All three are an `Executor`, driven by the same loop. It hands out few more items than there
are workers, so that when a worker dies only those few can have killed it; each of them is
then tried alone, and the one that kills its worker again is named.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    wait,
)
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlxdoctor.gate.examine import Examined, Task, examine, too_long
from mlxdoctor.safety.errors import InputError

#: A worker that is busy this much longer than an item may take is ended (seconds). Before
#: that, the item ends by itself between two checks.
GRACE = 2.0

#: Takes the number of an item and what came of it.
Finished = Callable[[int, Examined], None]


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass(frozen=True)
class Workers:
    """What the loop needs to know of workers.

    Attributes:
        start: makes an executor.
        stop: ends one at once, without waiting for what it is doing.
        slots: items in work at a time.
        function: what examines an item.
        ahead: items that wait at the workers, so that none of them waits for the next.
    """

    start: Callable[[], Executor]
    stop: Callable[[Executor], None]
    slots: int
    function: Callable[[Task], Examined] = examine
    ahead: int = 0


def here() -> Workers:
    """One item after the other, in this process: nothing has to be started."""
    return Workers(Here, lambda executor: executor.shutdown(), 1)


def processes(jobs: int) -> Workers:
    """A pool of processes on this machine."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    before = set(multiprocessing.active_children())

    def start() -> Executor:
        return ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_settle
        )

    def stop(executor: Executor) -> None:
        executor.shutdown(wait=False, cancel_futures=True)
        own = set(multiprocessing.active_children()) - before
        for process in own:
            process.terminate()
        for process in own:
            process.join()

    return Workers(start, stop, jobs, guarded, ahead=jobs)


def cluster(address: str) -> Workers:
    """The workers of a Dask scheduler, which must see the same files.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    import importlib

    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise InputError(
            None, "--cluster needs Dask", "install it: pip install 'mlxdoctor[cluster]'"
        ) from None
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(
            None, f"no Dask scheduler answers at {address} ({error})", "check --cluster"
        ) from None
    slots = max(sum(client.ncores().values()), 1)

    def stop(executor: Executor) -> None:
        executor.shutdown(wait=False)
        client.close()

    return Workers(lambda: client.get_executor(pure=False, retries=0), stop, slots, ahead=slots)


def guarded(task: Task) -> Examined:
    """`examine` in a process that ends itself where a check does not return in time.

    The watchdog needs neither the interpreter nor this thread: it also ends what hangs
    within a library.
    """
    import faulthandler
    import os
    from pathlib import Path

    with Path(os.devnull).open("w") as nowhere:
        faulthandler.dump_traceback_later(task.seconds + GRACE, exit=True, file=nowhere)
        try:
            return examine(task)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _settle() -> None:
    """Make a worker process leave Ctrl-C to its parent, and the other cores to its siblings."""
    import signal

    import numpy  # noqa: F401 - its BLAS must be there to be limited
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)


def examine_all(tasks: Sequence[Task], workers: Workers, finished: Finished) -> bool:
    """Examine every task, whatever becomes of some.

    Args:
        tasks: the items.
        workers: who does it.
        finished: called for each item, in the order in which they end.

    Returns:
        Whether all was done: False where it was interrupted.
    """
    loop = _Loop(tasks, workers, finished)
    try:
        loop.run()
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            loop.keep()
        return False
    finally:
        loop.end()
    return True


class _Loop:
    """The state of `examine_all`: who does what, since when."""

    def __init__(self, tasks: Sequence[Task], workers: Workers, finished: Finished) -> None:
        self._tasks = tasks
        self._workers = workers
        self._finished = finished
        self._executor: Executor | None = None
        #: The item of each future, in the order in which they were handed out.
        self._running: dict[Future[Examined], int] = {}
        #: When an item came to a worker, which takes the oldest first.
        self._since: dict[int, float] = {}

    def run(self) -> None:
        """Work through all items; then, one by one, through those that may have killed a worker."""
        slots, ahead = self._workers.slots, self._workers.ahead
        suspects = self._through(deque(range(len(self._tasks))), slots, ahead)
        for number in suspects:
            if self._through(deque([number]), 1, 0):
                self._finished(number, Examined(None, _killed(self._tasks[number]), 0.0))

    def keep(self) -> None:
        """Pass on what has ended and was not looked at yet."""
        for future in [one for one in self._running if one.done()]:
            self._collect(future)

    def end(self) -> None:
        """End the workers, whatever they are doing."""
        if self._executor is not None:
            executor, self._executor = self._executor, None
            self._workers.stop(executor)

    def _through(self, waiting: deque[int], slots: int, ahead: int) -> list[int]:
        """Work through `waiting`; returns the items that were in work when a worker died."""
        suspects: list[int] = []
        while waiting or self._running:
            broken = False
            while waiting and len(self._running) < slots + ahead and not broken:
                broken = not self._submit(waiting)
            for number in list(self._running.values())[:slots]:
                self._since.setdefault(number, time.monotonic())
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in [one for one in self._running if one in done]:
                broken = not self._collect(future) or broken
            if broken:
                suspects += self._bury()
        return suspects

    def _submit(self, waiting: deque[int]) -> bool:
        """Hand out the next item; False where the workers turn out to be dead."""
        if self._executor is None:
            self._executor = self._workers.start()
        try:
            future = self._executor.submit(self._workers.function, self._tasks[waiting[0]])
        except BrokenExecutor:
            return False
        self._running[future] = waiting.popleft()
        return True

    def _collect(self, future: Future[Examined]) -> bool:
        """Pass on what came of an item; False where its worker died."""
        number = self._running[future]
        try:
            examined = future.result()
        except BrokenExecutor:
            return False
        except Exception as error:
            # A cluster says which task it lost a worker to, again and again.
            lost = f"{self._tasks[number].path}: its worker was lost ({type(error).__name__})"
            examined = Examined(None, f"{lost}; examine it alone with `mlxdoctor diagnose`", 0.0)
        del self._running[future]
        self._finished(number, examined)
        return True

    def _bury(self) -> list[int]:
        """End the dead workers; returns the items they had in work, less one out of time."""
        self.end()
        self.keep()
        now = time.monotonic()
        left = sorted(self._running.values())
        self._running.clear()
        begun = {number: self._since.pop(number) for number in left if number in self._since}
        late = [one for one in begun if now - begun[one] >= self._tasks[one].seconds]
        for number in late[:1]:
            left.remove(number)
            problem = too_long(self._tasks[number])
            self._finished(number, Examined(None, problem, now - begun[number]))
        return left


def _killed(task: Task) -> str:
    return (
        f"{task.path}: its worker process was killed while examining it, as the system does "
        "when memory runs out; examine it alone with `mlxdoctor diagnose`"
    )
