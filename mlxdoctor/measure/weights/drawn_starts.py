"""Which of the numbers that a seed draws the factors of an adapter grew from.

A trainer sets the seed, goes through the model and draws an A for every module that it converts.
MLX draws with Threefry (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; 2x32,
20 rounds): every draw has a key of its own, split off the one before, whatever size that draw had.
Training moves A little, so that it shows which draw it began with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.adapter import LoraModule
from mlxdoctor.evidence.tensor import TensorRef

Words = NDArray[np.uint32]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
#: Sizes of A that are compared, the commonest.
_SIZES = 12
#: Values are cut off at so many times the median size, which is half of the greatest at the start.
_FAR = 6.0


@dataclass(frozen=True)
class Start:
    """The draw that a module's A is nearest to.

    Attributes:
        module: its name.
        place: number of that draw after the seed was set, from 0.
        likeness: correlation of A with it, -1 to 1.
        part: how many times A holds it: the slope of A over the numbers as LoRA draws them,
            evenly within 1/sqrt(inputs) of zero. About 1 unless A was scaled or mixed.
        values: how many values were compared.
    """

    module: str
    place: int
    likeness: float
    part: float
    values: int


@dataclass(frozen=True)
class Layout:
    """How the values of an A lie in the draw that it is compared with.

    Value m as stored is number `(m // run) * stride + m % run` of the draw.

    Attributes:
        run: values that lie side by side in both.
        stride: how far the runs lie apart in the draw.
        larger: how many times as many numbers the draw had.
    """

    run: int = 1
    stride: int = 1
    larger: int = 1

    @classmethod
    def by_columns(cls, rank: int) -> Layout:
        """Written column by column under the shape that it has row by row."""
        return cls(1, rank)

    @classmethod
    def cut(cls, rank: int, larger: int) -> Layout:
        """The first columns of an A of so many times the rank."""
        return cls(rank, rank * larger, larger)


AS_STORED = Layout()


def starts(
    modules: Sequence[LoraModule],
    seed: int,
    draws: int,
    compared: int,
    layout: Layout = AS_STORED,
) -> list[Start]:
    """The nearest draw of every module whose A can be compared, in the modules' order.

    Args:
        modules: those to compare.
        seed: as it was set.
        draws: how many draws after that are looked at.
        compared: how many values of each A at most.
        layout: where in the draw they lie.
    """
    groups: dict[int, list[tuple[LoraModule, NDArray[np.float32], float]]] = defaultdict(list)
    for one in modules:
        # The first half of a draw's numbers and the second are drawn in pairs.
        count = min(compared, one.a.size * layout.larger // layout.stride * layout.run // 2)
        if (first := _first(one.a, count)) is not None:
            groups[one.a.size].append((one, *first))
    found: dict[str, Start] = {}
    # No model has more; a file may.
    for size, group in sorted(groups.items(), key=lambda one: -len(one[1]))[:_SIZES]:
        count = len(group[0][1])
        drawn = _drawn(seed, draws, size * layout.larger, count, layout)
        for one, values, norm in group:
            likenesses = drawn @ values
            place = int(np.abs(likenesses).argmax())
            likeness = float(likenesses[place])
            part = likeness * norm * sqrt(3 * one.in_features / count)
            found[one.name] = Start(one.name, place, likeness, part, count)
    return [found[one.name] for one in modules if one.name in found]


def _first(tensor: TensorRef, count: int) -> tuple[NDArray[np.float32], float] | None:
    """The first values around their mean, of length 1, and their length; None without one."""
    if not tensor.is_float or not count:
        return None
    # A signalling NaN warns when it is looked at; that it is there is a finding of another check.
    with np.errstate(invalid="ignore"):
        values = tensor.elements(0, count).astype(np.float64)
        if not np.isfinite(values).all():
            return None
    # One value that was overwritten does not hide the others.
    most = _FAR * float(np.median(np.abs(values)))
    values = values.clip(-most, most)
    values -= values.mean()
    norm = float(np.linalg.norm(values))
    return ((values / norm).astype(np.float32), norm) if 0 < norm < np.inf else None


# Adapters of a fleet mostly have one seed and few shapes.
@lru_cache(maxsize=16)
def _drawn(seed: int, draws: int, size: int, count: int, layout: Layout) -> NDArray[np.float32]:
    """`count` of `size` even numbers, a row for every draw, as `_first` has them."""
    stored = np.arange(count, dtype=np.uint32)[None, :]
    counters = stored // layout.run * np.uint32(layout.stride) + stored % layout.run
    keys = _keys(seed, draws)
    words, _ = _threefry(keys[:, :1], keys[:, 1:], counters, size - size // 2)
    rows: NDArray[np.float32] = (words / 2.0**32 - 0.5).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


@lru_cache(maxsize=16)
def _keys(seed: int, draws: int) -> Words:
    """The keys of the first draws after the seed was set, (draws, 2)."""
    key = np.array([[seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF]], np.uint32)
    counters = np.arange(2, dtype=np.uint32)
    keys = []
    for _ in range(draws):
        first, second = _threefry(key[:, 0], key[:, 1], counters, 2)
        key = first[None, :]
        keys.append(second)
    return np.stack(keys)


def _threefry(one: Words, two: Words, counters: Words, apart: int) -> tuple[Words, Words]:
    """Both words of the block cipher under the keys (one, two), of every counter and the one so
    far behind it.
    """
    added = (one, two, one ^ two ^ np.uint32(_PARITY))
    left, right = counters + one, counters + np.uint32(apart) + two
    for turn in range(5):
        for bits in _ROTATIONS[turn % 2]:
            left = left + right
            right = (right << np.uint32(bits) | right >> np.uint32(32 - bits)) ^ left
        left = left + added[(turn + 1) % 3]
        right = right + added[(turn + 2) % 3] + np.uint32(turn + 1)
    return left, right
