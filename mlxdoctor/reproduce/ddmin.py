"""Delta debugging: the smallest part of a set of differences that still brings the failure.

The algorithm is ddmin (Zeller and Hildebrandt 2002, Simplifying and Isolating
Failure-Inducing Input, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A part of `items` that fails, and no longer does without any one of them.

    Args:
        items: a set that fails; the empty set does not.
        fails: whether a part fails; what can't be told counts as no. Asked several times
            about some parts, so that it has to remember.

    Returns:
        The part, in the order of `items`: 1-minimal, which need not be the smallest of all.
    """
    left, parts = tuple(items), 2
    while len(left) >= 2:
        subsets = _split(left, parts)
        others = [tuple(one for one in left if one not in subset) for subset in subsets]
        if (subset := next(filter(fails, subsets), None)) is not None:
            left, parts = subset, 2
        # Of two halves each is the other's complement.
        elif parts > 2 and (rest := next(filter(fails, others), None)) is not None:
            left, parts = rest, parts - 1
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return left


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [items[low:high] for low, high in pairwise(bounds)]
