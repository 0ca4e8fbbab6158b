"""Many items over many workers: in this process, in watched others, or on a Dask cluster.

All three are driven by the same loop, which hands out few more items than there are workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mlxdoctor.gate.examine import Examined, Function, Task, examine
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.gate.pool import Pool

#: Takes the number of an item and what came of it.
Finished = Callable[[int, Examined], None]


class Workers(Protocol):
    """Who examines items."""

    @property
    def room(self) -> int:
        """How many more items they take."""

    def submit(self, number: int, task: Task) -> None:
        """Have an item examined."""

    def finished(self, *, at_once: bool = False) -> list[tuple[int, Examined]]:
        """What has ended since this was last asked; waits for the first, unless `at_once`."""

    def end(self) -> None:
        """End the work, whatever is being done."""


@dataclass
class Here:
    """One item after the other, in this process: nothing has to be started."""

    function: Function = examine
    ahead: int = 0
    _waiting: deque[tuple[int, Task]] = field(default_factory=deque, init=False)

    @property
    def room(self) -> int:
        """One at a time, and those ahead."""
        return 1 + self.ahead - len(self._waiting)

    def submit(self, number: int, task: Task) -> None:
        """It waits until somebody asks."""
        self._waiting.append((number, task))

    def finished(self, *, at_once: bool = False) -> list[tuple[int, Examined]]:
        """The next item is examined now."""
        if at_once or not self._waiting:
            return []
        number, task = self._waiting.popleft()
        try:
            return [(number, self.function(task))]
        except Exception as error:
            return [(number, _lost(task, error))]

    def end(self) -> None:
        """Nothing is left of it."""
        self._waiting.clear()


@dataclass
class Cluster:
    """The workers of a Dask scheduler. Each examines its items in a watched child."""

    client: Any
    slots: int
    function: Function = examine
    _executor: Any = field(default=None, init=False)
    _futures: dict[Future[Examined], tuple[int, Task]] = field(default_factory=dict, init=False)

    @property
    def room(self) -> int:
        """Twice as many as there are workers, so that none of them waits for the next."""
        return 2 * self.slots - len(self._futures)

    def submit(self, number: int, task: Task) -> None:
        """Have an item examined."""
        from mlxdoctor.gate.pool import in_a_child

        if self._executor is None:
            self._executor = self.client.get_executor(pure=False, retries=0)
        self._futures[self._executor.submit(in_a_child, self.function, task)] = (number, task)

    def finished(self, *, at_once: bool = False) -> list[tuple[int, Examined]]:
        """What has ended since this was last asked."""
        done, _ = wait(self._futures, 0 if at_once else None, FIRST_COMPLETED)
        ended = []
        for future in [one for one in self._futures if one in done]:
            number, task = self._futures.pop(future)
            try:
                ended.append((number, future.result()))
            except Exception as error:
                # A cluster says which task it lost a worker to, again and again.
                ended.append((number, _lost(task, error)))
        return ended

    def end(self) -> None:
        """Leave the cluster."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self.client.close()


def _lost(task: Task, error: Exception) -> Examined:
    lost = f"{task.path}: its worker was lost ({type(error).__name__})"
    return Examined(None, f"{lost}; examine it alone with `mlxdoctor diagnose`", 0.0)


def here() -> Here:
    """This process: as good as any where it is watched itself, as the command line's is."""
    return Here()


def processes(jobs: int) -> Pool:
    """So many watched processes on this machine."""
    from mlxdoctor.gate.pool import Pool

    return Pool(jobs)


def cluster(address: str) -> Cluster:
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
    return Cluster(client, max(sum(client.ncores().values()), 1))


def examine_all(tasks: Sequence[Task], workers: Workers, finished: Finished) -> bool:
    """Examine every task, whatever becomes of some.

    Args:
        tasks: the items.
        workers: who does it.
        finished: called for each item, in the order in which they end.

    Returns:
        Whether all was done: False where it was interrupted.
    """
    begun = ended = 0
    done: list[tuple[int, Examined]] = []
    try:
        while ended < len(tasks):
            while begun < len(tasks) and workers.room > 0:
                workers.submit(begun, tasks[begun])
                begun += 1
            done += workers.finished()
            while done:
                ended += 1
                finished(*done.pop(0))
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            for one in [*done, *workers.finished(at_once=True)]:
                finished(*one)
        return False
    finally:
        workers.end()
    return True
