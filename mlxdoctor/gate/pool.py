"""Processes that examine items: each is watched, and replaced where an item kills it.

The item is then examined again without what killed it, so that its other findings are there.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

from mlxdoctor.gate.examine import Examined, Function, Task, examine
from mlxdoctor.safety.stages import leave_out
from mlxdoctor.safety.watched import (
    AT_REST,
    POLL,
    Attempts,
    Child,
    Stopped,
    attach_from_environment,
)
from mlxdoctor.safety.without_torch import leave_torch_out

#: Items that wait at each worker, so that it need not wait for the next.
AHEAD = 1

#: Containers that a worker makes before it looks for garbage among them: an item leaves about a
#: thousand, beside what is imported. With Python's 700 that took 7% of the time, so it takes 3%.
COLLECTED_EVERY = 10_000


@dataclass
class _Job:
    """An item, and what is left out of it."""

    number: int
    task: Task
    begun: float = 0.0
    attempts: Attempts = field(default_factory=Attempts)


@dataclass
class _Worker:
    """A process, and what it has to do; it is at the first of its jobs."""

    child: Child
    connection: Connection
    jobs: deque[_Job]
    look: float


@dataclass
class Pool:
    """Workers of this machine, as `fleet.Workers` says.

    Attributes:
        slots: how many.
        function: what examines an item.
    """

    slots: int
    function: Function = examine
    _waiting: deque[_Job] = field(default_factory=deque, init=False)
    _workers: list[_Worker] = field(default_factory=list, init=False)
    _done: list[tuple[int, Examined]] = field(default_factory=list, init=False)

    @property
    def room(self) -> int:
        """How many more items it takes."""
        taken = len(self._waiting) + sum(len(one.jobs) for one in self._workers)
        return (1 + AHEAD) * self.slots - taken

    def submit(self, number: int, task: Task) -> None:
        """Have an item examined."""
        self._waiting.append(_Job(number, task))
        self._hand_out()

    def finished(self, *, at_once: bool = False) -> list[tuple[int, Examined]]:
        """What has ended since this was last asked; waits for the first, unless `at_once`."""
        while True:
            self._collect(0.0 if at_once else POLL)
            if self._done or at_once:
                done, self._done = self._done, []
                return done

    def end(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self._workers:
            worker.child.kill()
            _close(worker)
        self._workers.clear()

    def _hand_out(self) -> None:
        while self._waiting:
            free = [one for one in self._workers if len(one.jobs) <= AHEAD]
            worker = min(free, key=lambda one: len(one.jobs), default=None)
            if len(self._workers) < self.slots and (worker is None or worker.jobs):
                worker = _started()
                self._workers.append(worker)
            if worker is None:
                return
            job = self._waiting.popleft()
            if not worker.jobs:
                job.begun = time.monotonic()
            worker.jobs.append(job)
            # One that has just died is found out by whoever looks at it next.
            with suppress(OSError):
                worker.connection.send((self.function, job.task, job.attempts.left_out))

    def _collect(self, seconds: float) -> None:
        """Take what the workers have sent, and look at those whose turn it is."""
        ready = wait([one.connection for one in self._workers], seconds)
        for worker in list(self._workers):
            if worker.connection in ready:
                self._take(worker)
        now = time.monotonic()
        for worker in [one for one in self._workers if now >= one.look]:
            worker.look = now + POLL
            status = worker.child.ended()
            if status is not None:
                stopped = worker.child.watch.of_death(status)
                self._bury(worker, stopped or Stopped(None, "", "its worker was ended by a signal"))
            elif stopped := worker.child.watch.look():
                worker.child.kill()
                self._bury(worker, stopped)
        self._hand_out()

    def _take(self, worker: _Worker) -> None:
        try:
            examined = worker.connection.recv()
        except (EOFError, OSError):
            # Its exit status says more, and may take a moment.
            worker.look = 0.0
            return
        job = worker.jobs.popleft()
        if worker.jobs:
            worker.jobs[0].begun = time.monotonic()
        if isinstance(examined, str):
            examined = Examined(None, f"{job.task.path}: {examined}", 0.0)
        self._done.append((job.number, examined))

    def _bury(self, worker: _Worker, stopped: Stopped) -> None:
        """Have what a dead worker had to do done by others."""
        while worker.connection.poll() and worker.jobs:
            before = len(worker.jobs)
            self._take(worker)
            if len(worker.jobs) == before:
                break
        self._workers.remove(worker)
        _close(worker)
        if not worker.jobs:
            return
        job = worker.jobs.popleft()
        self._waiting.extendleft(reversed(worker.jobs))
        whole = (stopped.item, stopped.item)
        if job.attempts.again(stopped) and whole not in job.attempts.left_out:
            self._waiting.appendleft(job)
        else:
            problem = f"{job.task.path}: {stopped.sentence}"
            self._done.append((job.number, Examined(None, problem, time.monotonic() - job.begun)))


def _started() -> _Worker:
    ours, theirs = Pipe()
    # The program that this is may be anything; where its modules are found, ours are.
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from mlxdoctor.gate.pool import serve; serve({theirs.fileno()})"
    )
    child = Child.start([sys.executable, "-c", code], inherited=[theirs.fileno()])
    theirs.close()
    return _Worker(child, ours, deque(), time.monotonic() + AT_REST)


def _close(worker: _Worker) -> None:
    worker.child.close()
    worker.connection.close()


def serve(descriptor: int) -> None:
    """Examine what comes in through a connection, until it is closed."""
    attach_from_environment()
    leave_torch_out()
    os.set_inheritable(descriptor, False)
    _settle()
    connection = Connection(descriptor)
    while True:
        try:
            function, task, left_out = connection.recv()
        except EOFError:
            return
        leave_out(left_out)
        try:
            answer = function(task)
        except BaseException as error:  # a library's panic is no `Exception`
            answer = f"its worker was lost ({type(error).__name__})"
        connection.send(answer)


def _settle() -> None:
    """Make a worker leave Ctrl-C to its parent and other cores to its siblings; tidy up rarely."""
    import numpy  # noqa: F401 - its BLAS must be there to be limited
    from threadpoolctl import threadpool_limits

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    gc.set_threshold(COLLECTED_EVERY)


_own = threading.local()


def in_a_child(function: Function, task: Task) -> Examined:
    """Examine an item in a watched process of this thread's own, which is kept for the next."""
    pool: Pool | None = getattr(_own, "pool", None)
    if pool is None:
        pool = _own.pool = Pool(1)
    pool.function = function
    pool.submit(0, task)
    [(_, examined)] = pool.finished()
    return examined
