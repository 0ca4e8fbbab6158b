"""How long models may run in one diagnosis, and how much of a list of work fits into that."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: Seconds that one diagnosis takes at most without training, unless the user says otherwise.
DEFAULT_SECONDS = 60.0
#: Of them, the share that is kept for files and the report, and for work that was begun.
KEPT_FOR_THE_REST = 0.1
#: Items that are measured before it is asked how long they take.
FIRST_STAGE = 4


class TimeBudget:
    """Seconds that are divided among what asks models; it begins when it is made.

    Args:
        seconds: of the whole diagnosis, most of which models may take; None for as long as it
            takes.
        clock: seconds that only ever rise.
    """

    def __init__(
        self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._begun = clock()

    @property
    def left(self) -> float:
        """Seconds until it is spent; infinite where there is no limit."""
        return math.inf if self.seconds is None else self._until(self.seconds)

    @property
    def left_for_training(self) -> float:
        """Seconds that training may take, which has as long again as what only asks models.

        `DEFAULT_SECONDS` where there is no limit: what it searches has no end of its own.
        """
        return DEFAULT_SECONDS if self.seconds is None else self._until(2 * self.seconds)

    def _until(self, seconds: float) -> float:
        allowed = (1.0 - KEPT_FOR_THE_REST) * seconds
        return max(0.0, allowed - (self._clock() - self._begun))

    def stages(
        self, costs: Sequence[float], share: float = 1.0, first: int = FIRST_STAGE, growth: int = 2
    ) -> Iterator[range]:
        """Which items to measure next, while there is time.

        Stages grow: how long the last one took says how much of the next one fits.
        The first is always made, unless nothing is left. What comes first in a list is
        measured by every budget, so that a larger one only adds to a smaller one's figures.

        Args:
            costs: of each item, in any unit: tokens, say.
            share: of what is left, that these items may take.
            first: items of the first stage; each further one is `growth` times as large.
        """
        allowed = share * self.left
        begun = self._clock()
        done, size, speed = 0, first, 0.0
        while done < len(costs) and self.left > 0:
            stop = min(done + size, len(costs))
            if done:
                left = allowed - (self._clock() - begun)
                while stop > done and speed * sum(costs[done:stop]) > left:
                    stop -= 1
            if stop == done:
                return
            start = self._clock()
            yield range(done, stop)
            speed = (self._clock() - start) / max(sum(costs[done:stop]), 1e-9)
            done, size = stop, growth * size

    @property
    def spent(self) -> str:
        """Why something was not measured at all, as a clause; and what to do."""
        total = f"{self.seconds or 0:g} s"
        return f"the time budget of {total} was spent before; raise it with --budget"

    def said(self, done: int, total: int, what: str) -> str:
        """What was left out, as a clause; empty where nothing was."""
        if done >= total or self.seconds is None:
            return ""
        return f"{done:,} of {total:,} {what}: the time budget of {self.seconds:g} s"


@dataclass
class Pace:
    """When to stop what is done step by step, since it is enough or can't be enough in time.

    Attributes:
        needed: steps without which the rest is of no use.
        deadline: of `time.monotonic`, before which those have to be made.
        until: when those suffice; by default the deadline.
    """

    needed: int
    deadline: float
    until: float | None = None
    clock: Callable[[], float] = time.monotonic
    _done: int = 0
    _first: float = 0.0

    def taken(self, steps: Iterable[T]) -> Iterator[T]:
        """The steps that there is time for."""
        for step in steps:
            yield step
            if self.is_over():
                return

    def is_over(self) -> bool:
        """Whether to stop; asked after each step."""
        now = self.clock()
        self._done += 1
        if self._done == 1:
            self._first = now
        if self.is_enough:
            return now > (self.deadline if self.until is None else self.until)
        # How long the first one took says nothing of the others: kernels are compiled in it.
        each = (now - self._first) / max(self._done - 1, 1)
        return now + (self.needed - self._done) * each > self.deadline

    @property
    def is_enough(self) -> bool:
        return self._done >= self.needed


def spread(count: int) -> list[int]:
    """The numbers below `count` in an order in which each beginning is spread over all of them."""
    bits = max(count - 1, 1).bit_length()
    flipped = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [number for number in flipped if number < count]


def by_turns(sizes: Sequence[int], each: int) -> list[int]:
    """An order for the items of several groups, numbered one group after the other.

    So many of each group come before more of any, and each group's are spread over it.
    """
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    orders = [[start + i for i in spread(n)] for start, n in zip(starts, sizes, strict=True)]
    rounds = range(0, max(sizes, default=0), each)
    return [i for turn in rounds for order in orders for i in order[turn : turn + each]]
