"""Many items over many workers: in this process, in watched others, or on a Dask cluster.

A watched process that an item kills is replaced, and the item is examined again without what
killed it, so that its other findings are there.
"""

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

from mlxdoctor.gate.examine import Examined, Function
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.stages import attach, leave_out
from mlxdoctor.safety.watched import POLL, Child, Stopped, begin_again
from mlxdoctor.safety.without_torch import leave_torch_out

#: The watched process that a thread leads.
_own = threading.local()

#: Takes the number of an item and what came of it.
Finished = Callable[[int, Examined], None]


@dataclass(frozen=True)
class Workers:
    """Who examines items.

    Attributes:
        most: items that are handed out at a time.
        end: ends the work at once, whatever is being done.
    """

    submit: Callable[[str], Future[Examined]]
    most: int
    end: Callable[[], None]


def examine_all(items: Sequence[str], workers: Workers, finished: Finished) -> None:
    """Examine every item until that is interrupted; `finished` is called as each ends."""
    running: dict[Future[Examined], int] = {}
    begun = 0
    try:
        while begun < len(items) or running:
            while begun < len(items) and len(running) < workers.most:
                running[workers.submit(items[begun])] = begun
                begun += 1
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                number = running.pop(future)
                finished(number, _came_of(items[number], future))
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            for future, number in running.items():
                if future.done():
                    finished(number, _came_of(items[number], future))
    finally:
        workers.end()


def _came_of(item: str, future: Future[Examined]) -> Examined:
    try:
        return future.result()
    except Exception as error:  # of a bug, or of a machine of a cluster that is gone
        return _lost(item, error)


def _lost(item: str, error: BaseException) -> Examined:
    lost = f"{item}: its worker was lost ({type(error).__name__})"
    return Examined(None, f"{lost}; examine it alone with `mlxdoctor diagnose`", 0.0)


def here(function: Function) -> Workers:
    """This process: as good as any where it is watched itself, as the command line's is."""

    def submit(item: str) -> Future[Examined]:
        future: Future[Examined] = Future()
        try:
            future.set_result(function(item))
        except Exception as error:
            future.set_exception(error)
        return future

    return Workers(submit, 1, lambda: None)


def processes(jobs: int, function: Function) -> Workers:
    """So many watched processes on this machine, each led by a thread."""
    workers = [_Worker() for _ in range(jobs)]
    unled = iter(workers)

    def lead() -> None:
        _own.worker = next(unled)

    threads = ThreadPoolExecutor(jobs, initializer=lead)

    def end() -> None:
        for worker in workers:
            worker.end()
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()

    # So that no thread waits for its next item.
    return Workers(lambda item: threads.submit(in_a_child, function, item), 2 * jobs, end)


def cluster(address: str, function: Function) -> Workers:
    """The workers of a Dask scheduler, which must see the same files.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        remedy = "install it: pip install 'mlxdoctor[cluster]'"
        raise InputError(None, "--cluster needs Dask", remedy) from None
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        problem = f"no Dask scheduler answers at {address} ({error})"
        raise InputError(None, problem, "check --cluster") from None
    executor = client.get_executor(pure=False, retries=0)

    def end() -> None:
        executor.shutdown(wait=False)
        client.close()

    most = 2 * max(sum(client.ncores().values()), 1)
    return Workers(lambda item: executor.submit(in_a_child, function, item), most, end)


class _Worker:
    """A watched process that examines one item after the other; it is started for the first."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._is_ended = False

    def examine(self, function: Function, item: str) -> Examined:
        """Examine an item, again where something of it has to be left out."""
        begun = time.monotonic()
        left_out: dict[tuple[str, str], str] = {}
        while True:
            answer = self._ask(function, item, left_out)
            if isinstance(answer, Examined):
                return answer
            is_over = not begin_again(left_out, answer) or (answer.item, answer.item) in left_out
            if is_over or self._is_ended:
                problem = f"{item}: {answer.sentence}"
                return Examined(None, problem, time.monotonic() - begun)

    def end(self) -> None:
        """End the process, whatever it is doing, and start no other."""
        with self._lock:
            self._is_ended = True
            if self._child is not None:
                self._child.kill()

    def close(self) -> None:
        """Let go of the process, which no thread uses any more."""
        if self._child is not None and self._connection is not None:
            self._child.close()
            self._connection.close()
            self._child = None

    def __del__(self) -> None:
        # The threads of a cluster's machine come and go, each with a process of its own.
        self.close()

    def _ask(
        self, function: Function, item: str, left_out: dict[tuple[str, str], str]
    ) -> Examined | Stopped:
        child, connection = self._started()
        stopped: Stopped | None = None
        with suppress(EOFError, OSError):
            connection.send((function, item, left_out))
            while not connection.poll(POLL):
                if stopped := child.look():
                    break
            else:
                answer: Examined = connection.recv()
                return answer
        with self._lock:
            if stopped is None:
                outcome = child.outcome()
                by_signal = Stopped(None, "", "its worker was ended by a signal")
                stopped = outcome if isinstance(outcome, Stopped) else by_signal
            self.close()
        return stopped

    def _started(self) -> tuple[Child, Connection]:
        with self._lock:
            if self._is_ended:
                raise InterruptedError("the work was ended")
            if self._child is None or self._connection is None:
                self._connection, theirs = Pipe()
                number = theirs.fileno()
                # The program that this is may be anything; where its modules are found, ours are.
                path = f"import sys; sys.path[:] = {sys.path!r}"
                code = f"{path}; from mlxdoctor.gate.workers import serve; serve({number})"
                with theirs:
                    self._child = Child([sys.executable, "-c", code], inherited=[number])
            return self._child, self._connection


def in_a_child(function: Function, item: str) -> Examined:
    """Examine an item in the watched process that this thread leads, and keeps for the next."""
    if not hasattr(_own, "worker"):
        _own.worker = _Worker()
    worker: _Worker = _own.worker
    return worker.examine(function, item)


def serve(descriptor: int) -> None:
    """Examine what comes in through a connection, until it is closed."""
    attach()
    leave_torch_out()
    os.set_inheritable(descriptor, False)
    import numpy  # noqa: F401 - its BLAS must be there to be limited
    from threadpoolctl import threadpool_limits

    # Ctrl-C is for the parent, and other cores are for the siblings.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    connection = Connection(descriptor)
    with suppress(EOFError):
        while True:
            function, item, left_out = connection.recv()
            leave_out(left_out)
            try:
                answer = function(item)
            except BaseException as error:  # a library's panic is no `Exception`
                answer = _lost(item, error)
            connection.send(answer)
